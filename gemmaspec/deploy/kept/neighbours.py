"""Other servers on the machine, which take part of what is measured."""

from __future__ import annotations

from collections.abc import Callable

from gemmaspec.deploy.kept import stacks


def warn_of_neighbours(own: str, note: Callable[[str], None]) -> None:
    """Say which other stacks of gemmaspec run on this machine, because they slow down what is measured.

    A stack whose state cannot be determined is left out: whether it costs anything is not known.
    """
    others = [one for one in stacks.started_stacks() if one.server.name != own and not one.server.nodes]
    running = [one.server.name for one in others if stacks.look(one).status in ("running", "restarting")]
    if not running:
        return
    verb = "runs" if len(running) == 1 else "run"
    note(f"warning: {', '.join(running)} {verb} on this machine too, and may slow down what is measured")
    note(f"    gemmaspec down {running[0]}")
