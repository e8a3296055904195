"""Patches for speed that may be why a running server goes wrong, as `watch` sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.stacks import Started
from gemmaspec.deploy.start import speedless
from gemmaspec.engine.server import Engine
from gemmaspec.errors import GemmaspecError, StartFailed
from gemmaspec.files import read_regular
from gemmaspec.live.faults import Event, FaultKind


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
        found = speedless.suspicion({"plan.json": plan}, lines, StartFailed(event.reason)) if lines else None
        return found.named if found else ()
    return ()


def sentence(name: str, patches: Sequence[str]) -> str:
    """Return what to try; "" without suspected patches."""
    if not patches:
        return ""
    return f"it runs with patches for speed ({', '.join(patches)}); without: gemmaspec up {name} --no-speed-patches"
