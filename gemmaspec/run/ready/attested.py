"""Before a server is called ready, every process of vLLM has to have attested its patched functions.

Each process looks before it serves, so all have looked once the server answers; only several API servers may be late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, PatchConflict
from gemmaspec.core.launcher import ATTEST_FILES
from gemmaspec.run.engine.choose import seats
from gemmaspec.run.engine.server import Engine, Server

WAIT_S: Final = 30.0
"""Seconds that late processes get."""
_POLL_S: Final = 0.3


def ensure_attested(
    engine: Engine, server: Server, *, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Raise PatchConflict unless all processes run the patched functions.

    A server without patches has nothing to attest; its stack lacks the files for it.
    """
    until = clock() + WAIT_S
    while True:
        states = [problem for host, report in _reports(engine, server) if (problem := _problem(server, host, report))]
        if not states:
            return
        if clock() >= until or any(state == "different" for state, _ in states):
            lines = "\n".join(f"  {line}" for _, line in states[:10])
            raise PatchConflict(
                f"{server.name} answers, but does not run the patched functions in all processes:\n{lines}",
                hint=f"gemmaspec logs {server.name}    # lines that begin with: gemmaspec: not attested",
            )
        sleep(_POLL_S)


def _reports(engine: Engine, server: Server) -> list[tuple[str, dict[str, Any] | None]]:
    reports: list[tuple[str, dict[str, Any] | None]] = []
    for host, seated, there in seats(engine, server):
        report = None
        with contextlib.suppress(GemmaspecError):  # a damaged report is an error where it is shown
            report = seated.report(there)
        reports.append((host, report))
    return reports


def _problem(server: Server, host: str, report: dict[str, Any] | None) -> tuple[str, str] | None:
    """Return the state of a machine and why it is not attested; None if it is, or has nothing to attest."""
    on = f"{host}: " if host else ""
    if report is None and (server.folder / ATTEST_FILES[0]).is_file():
        return "", f"{on}the launcher's report cannot be read, so what its processes attest is not known"
    attested = (report or {}).get("attested")
    if not attested or attested["state"] == "attested":
        return None
    return attested["state"], on + "; ".join(attested["problems"])
