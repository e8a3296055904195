"""Patches for speed that may be why a running server goes wrong, as `watch` sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.core.files import read_regular
from gemmaspec.core.live.faults import Event, FaultKind
from gemmaspec.run.engine.server import Engine
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.serve import speedless


def of(started: Started, event: Event, engine: Engine | None = None) -> tuple[str, ...]:
    """Return those that may be why a draft is dead or cut off; where the server has exited, those in its traceback."""
    if event.kind not in (FaultKind.DEAD_DRAFT, FaultKind.CUT_DRAFT, FaultKind.GONE):
        return ()
    with contextlib.suppress(GemmaspecError, OSError):
        engine = engine or stacks.engine_of(started)
        if event.kind is not FaultKind.GONE:
            return speedless.in_report(engine.report(started.server))
        plan = (read_regular(started.server.folder / "plan.json") or b"").decode(errors="replace")
        lines = speedless.log_of(engine, started.server)
        if lines:
            suspicion = speedless.suspicion({"plan.json": plan}, lines, StartFailed(event.reason))
        else:
            suspicion = None
        if suspicion:
            return suspicion.named
        return ()
    return ()


def sentence(name: str, patches: Sequence[str]) -> str:
    """Return what to try; "" without suspected patches."""
    if not patches:
        return ""
    return f"it runs with patches for speed ({', '.join(patches)}); without: gemmaspec up {name} --no-speed-patches"
