"""Why a stack's server has ended or its start has failed, from its log: the same words in every command."""

from __future__ import annotations

import contextlib
from typing import Final

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.stacks import FAILED_LOG, Started
from gemmaspec.engine import tail as tail_of
from gemmaspec.engine.lines import lines
from gemmaspec.engine.server import State
from gemmaspec.errors import GemmaspecError
from gemmaspec.ready.death import Death, death, failed

_LOG_LINES: Final = 5000


def why_ended(started: Started, state: State) -> Death:
    """Return why a server has ended that nobody stopped, or why its start failed; an empty reason if nothing shows."""
    name = started.server.name
    with contextlib.suppress(GemmaspecError):
        if started.outcome == "failed" and state.status == "absent":
            return failed(list(lines(tail_of.read(stacks.stack_folder(name) / FAILED_LOG, tail=_LOG_LINES))))
        said = list(stacks.engine_of(started).logs(started.server, tail=_LOG_LINES))
        return death(said, exit_code=state.exit_code)
    return Death(why="")


def next_after(started: Started, state: State) -> str:
    """Return the command that gets a server running again whose processes have ended."""
    if state.detail:  # what it left behind is in the way of a start
        return f"gemmaspec down {started.server.name}    # then: {started.again}"
    return started.again
