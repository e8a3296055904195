"""`gemmaspec logs`."""

from __future__ import annotations

from typing import Annotated

from gemmaspec.cli import options, output
from gemmaspec.cli.target import told_on_interrupt
from gemmaspec.core.errors import UsageError


def logs(
    name: options.Stack,
    follow: Annotated[bool, options.option("-f", "--follow")] = False,
    previous: Annotated[bool, options.option("--previous", "-p")] = False,
    tail: Annotated[int | None, options.option("--tail", "-n", min=0)] = None,
) -> None:
    """Print the log of a server since its last start; with replicas, of each after its name."""
    from gemmaspec.run.kept import endings
    from gemmaspec.run.kept import logs as use_case

    if follow and previous:
        raise UsageError("--follow and --previous cannot be used together, because an earlier log has ended")
    with told_on_interrupt(name):
        for line in use_case.logs(name, follow=follow, tail=tail, previous=previous):
            output.data(line)
        if not previous and (why := endings.how_it_ended(name)):
            output.progress(f"{name} has exited: {why}")
