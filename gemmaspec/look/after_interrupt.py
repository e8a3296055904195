"""What still runs after Ctrl-C ended a command, in a sentence."""

from __future__ import annotations

from collections.abc import Callable

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.look.group_status import router_status
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.groups import is_group


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
        state = stacks.look(stacks.find(name))
    except GemmaspecError:
        return "interrupted; no server was started"
    if state.status in ("running", "restarting"):
        note(f"gemmaspec logs -f {name}    # or: gemmaspec down {name}")
        return f"interrupted; {name} keeps running"
    if state.status == "unknown":
        return f"interrupted; cannot tell whether {name} runs: {state.detail}"
    note(f"gemmaspec restart {name}    # starts it as it ran before")
    return f"interrupted; {name} is not running"
