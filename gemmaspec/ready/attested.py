"""Before a server is called ready, every process of vLLM has to attest its patched functions once more.

Each process looks by itself, twice a second while it starts. What it saw after the server was healthy counts: by then
all modules are imported and all plugins have run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from gemmaspec.engine.choose import seats
from gemmaspec.engine.server import Engine, Server
from gemmaspec.errors import GemmaspecError, PatchConflict
from gemmaspec.launcher import ORIGINS_FILE
from gemmaspec.profile.engines import uses_image

WAIT_S: Final = 30.0
"""Seconds that the processes get to look again; a look takes milliseconds, on a busy machine some seconds."""
_POLL_S: Final = 0.3


class Attesting:
    """What the processes of a server attested when it became healthy, and whether they have looked again since."""

    def __init__(self, engine: Engine, server: Server) -> None:
        self._engine, self._server = engine, server
        self._before = {host: _now(report) for host, report in self._reports().items()}

    def ensure(self, *, clock: Callable[[], float], sleep: Callable[[float], None], fresh: bool = True) -> None:
        """Wait until every process has looked again, and raise PatchConflict unless all run the patched functions.

        Without `fresh`, what they said last counts. A server without patches has nothing to attest; its stack lacks
        the files for it.
        """
        until = clock() + WAIT_S
        while True:
            reports = self._reports()
            late = [why for host, report in reports.items() if (why := self._missing(host, report, fresh=fresh))]
            if wrong := [why for host, report in reports.items() if (why := _different(host, report))]:
                raise self._conflict(wrong)
            if not late:
                self._mark_started()
                return
            if clock() >= until:
                raise self._conflict(late)
            sleep(_POLL_S)

    def _conflict(self, why: list[str]) -> PatchConflict:
        lines = "\n".join(f"  {line}" for line in why[:10])
        return PatchConflict(
            f"{self._server.name} answers, but does not run the patched functions in all processes:\n{lines}",
            hint=f"gemmaspec logs {self._server.name}    # lines that begin with: gemmaspec: not attested",
        )

    def _reports(self) -> dict[str, dict[str, Any] | None]:
        found: dict[str, dict[str, Any] | None] = {}
        for host, engine, server in seats(self._engine, self._server):
            found[host] = None
            with contextlib.suppress(GemmaspecError):  # a damaged report is told where it is shown
                found[host] = engine.report(server)
        return found

    def _missing(self, host: str, report: dict[str, Any] | None, *, fresh: bool) -> str:
        """Return who has not attested, or not since the server was healthy; empty if all have."""
        if report is None and (self._server.folder / ORIGINS_FILE).is_file():
            return _on(host, "the launcher's report cannot be read, so what its processes attest is not known")
        attested = (report or {}).get("attested")
        if not attested:
            return ""
        if attested["state"] != "attested":
            return _on(host, "; ".join(attested["problems"]))
        since = self._before.get(host, 0.0)
        late = [one for one in attested["processes"] if fresh and one["checked"] <= since]
        return _on(host, f"{late[0]['title']} (pid {late[0]['pid']}) has not looked again") if late else ""

    def _mark_started(self) -> None:
        """Tell the processes that the start is over: from now on a difference is told, and ends nothing.

        In a container, probe.py does so.
        """
        folder = self._server.run_dir / "attest"
        if not uses_image(self._engine.name) and folder.is_dir():
            with contextlib.suppress(OSError):
                (folder / "started").touch()


def _different(host: str, report: dict[str, Any] | None) -> str:
    attested = (report or {}).get("attested")
    return _on(host, "; ".join(attested["problems"])) if attested and attested["state"] == "different" else ""


def _now(report: dict[str, Any] | None) -> float:
    return float((report or {}).get("attested", {}).get("now", 0.0))


def _on(host: str, text: str) -> str:
    return f"{host}: {text}" if host else text
