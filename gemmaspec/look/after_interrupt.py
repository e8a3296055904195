"""What still runs after Ctrl-C ended a command, in a sentence."""

from __future__ import annotations

from collections.abc import Callable

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.look.group_status import router_status
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.groups import is_group
from gemmaspec.run.kept.stacks import Started, find, look, replicas_of


def _what_serves(name: str) -> str:
    """Return how many replicas get requests now, or how the router is."""
    router = router_status(name)
    if not router.routed:
        return f"the router of {name} is {router.word}"
    return f"{router.serving} of {len(router.group.replicas)} replicas of {name} get requests"


def after_interrupt(name: str, note: Callable[[str], None]) -> str:
    """Return a sentence on what keeps running after Ctrl-C, of a server or of replicas."""
    try:
        if is_group(name):
            note(f"gemmaspec status {name}    # or: gemmaspec down {name}")
            return f"interrupted; {_what_serves(name)}"
        started = stacks.find(name)
        state = stacks.look(started)
    except GemmaspecError:
        return "interrupted; no server was started"
    if state.lives:
        note(f"gemmaspec logs -f {name}    # or: gemmaspec down {name}")
        return f"interrupted; {name} keeps running"
    if state.status == "unknown":
        return f"interrupted; cannot tell whether {name} runs: {state.detail}"
    if started.known_good:
        again = "starts it as it ran before"
    else:
        again = "starts it again; it was never ready"
    note(f"gemmaspec restart {name}    # {again}")
    return f"interrupted; {name} is not running"


def after_interrupted_down(name: str) -> str:
    """Return what an interrupted `down` has left running."""
    try:
        if is_group(name):
            members = replicas_of(name)
        else:
            members = (name,)
        left = [started for member in members if (started := find(member)).outcome != "stopped"]
        ends = [one.server.name for one in left if one.outcome == "stopping" and _lives(one)]
        runs = [one.server.name for one in left if one.outcome != "stopping" and _lives(one)]
    except GemmaspecError as error:
        return f"interrupted; cannot tell what is left of {name}: {error.message}"
    if ends:
        parts = [f"{', '.join(ends)} was told to stop, and has not ended yet"]
    else:
        parts = []
    parts += [f"{', '.join(runs)} runs on"] if runs else []
    return f"interrupted; {'; '.join(parts) or f'nothing of {name} runs any more'}"


def _lives(started: Started) -> bool:
    """Return whether anything of a server runs, or may run."""
    state = look(started)
    return not state.gone or state.left
