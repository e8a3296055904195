"""Why a server ended, by its log and by what the watch saw, and the next command."""

from __future__ import annotations

import contextlib
from typing import Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.run.engine import tail as tail_of
from gemmaspec.run.engine.lines import lines
from gemmaspec.run.engine.server import State
from gemmaspec.run.kept import stacks, verdicts
from gemmaspec.run.kept.stacks import FAILED_LOG, Started
from gemmaspec.run.ready.death import Death, death, failed

_WHY_LINES: Final = 5000


def why_ended(started: Started, state: State) -> Death:
    """Return why a server has ended that nobody stopped, or why its start failed; an empty reason if nothing shows."""
    name = started.server.name
    with contextlib.suppress(GemmaspecError):
        if started.outcome == "failed" and state.status == "absent":
            return failed(list(lines(tail_of.read(stacks.stack_folder(name) / FAILED_LOG, tail=_WHY_LINES))))
        if state.status == "absent" and uses_image(started.engine):
            return Death(why="its container is gone, and its log with it: it was removed by other means than gemmaspec")
        last_lines = list(stacks.engine_of(started).logs(started.server, tail=_WHY_LINES))
        starved = state.starved or _seen_by_watch(started)
        rebooted = started.is_of_another_boot
        return death(last_lines, exit_code=state.exit_code, starved=starved, rebooted=rebooted)
    return Death(why="")


def _seen_by_watch(started: Started) -> str:
    """Return that memory ran out, if `watch` has seen that in the moment in which this start ended."""
    seen = verdicts.last_watch(started.server.name)
    if seen and seen.at >= (started.since or 0):
        return seen.starved
    return ""


def ending(started: Started, state: State, *, follow: bool = True) -> str:
    """Return why a server has ended that nobody stopped, and how it gets running again, for a line of ours."""
    death = why_ended(started, state)
    if follow:
        command = f"next: {next_after(started, state)}"
    else:
        command = ""
    return "; ".join(filter(None, (death.why.rstrip("."), (death.fix or "").rstrip("."), command)))


def how_it_ended(name: str) -> str:
    """Return `ending` of a server by its name; '' for one that runs or was stopped, and for replicas."""
    with contextlib.suppress(GemmaspecError):
        started = stacks.find(name)
        state = stacks.look(started)
        if state.status == "exited":
            return ending(started, state)
        return ""
    return ""


def next_after(started: Started, state: State) -> str:
    """Return the command that gets a server running again whose processes have ended."""
    if state.left:  # what it left behind is in the way of a start
        return f"gemmaspec down {started.server.name}    # then: {started.again}"
    return started.again
