"""Restart a server that a watch has judged, unless somebody has stopped or started it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stack_lock import StartProgress
from gemmaspec.run.kept.stacks import Started
from gemmaspec.serve import up
from gemmaspec.serve.starting import Running

_TIMEOUT_S = 1800.0


class LeftAlone(GemmaspecError):
    """The server was stopped or started by somebody else after it was judged."""


def restart_judged(
    judged: Started,
    progress: StartProgress,
    *,
    overrides: tuple[str, ...],
    no_spec: bool,
    gate: Callable[[Callable[[str], None]], None],
) -> Running:
    """Restart a server as `restart` does. Raises LeftAlone if it is not the one that was judged any more.

    That is asked once the stack is locked: while this waited for `down`, the server was stopped.
    """
    return up.restart(
        judged.server.name,
        progress,
        timeout_s=_TIMEOUT_S,
        overrides=overrides,
        no_spec=no_spec,
        gate=gate,
        first=partial(_clear, judged),
    )


def _clear(judged: Started) -> None:
    """Raise LeftAlone for a server that was stopped or started since; end what a dead one has left behind."""
    name = judged.server.name
    now = stacks.find(name)
    if now.is_unwanted:
        raise LeftAlone(f"{name} was stopped meanwhile")
    if now.since != judged.since:
        raise LeftAlone(f"{name} was started by somebody else meanwhile")
    engine = stacks.engine_of(now)
    if stacks.look(now, engine).status != "running":  # its last processes may take their time, and stand in the way
        engine.stop(now.server)
