"""`gemmaspec logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.target import told_on_interrupt
from gemmaspec.errors import UsageError


def logs(
    name: options.Stack,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow the log until the server ends or Ctrl-C.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Print the log of the previous or failed start.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Print only the last N lines.")
    ] = None,
) -> None:
    """Print the log of a server since its last start; with replicas, of each after its name."""
    from gemmaspec.deploy.kept import logs as use_case
    from gemmaspec.deploy.kept.groups import is_group

    if follow and previous:
        raise UsageError("--follow and --previous cannot be used together, because an earlier log has ended")
    with told_on_interrupt(name, replicas=is_group(name)):
        for line in use_case.logs(name, follow=follow, tail=tail, previous=previous):
            output.data(line)
