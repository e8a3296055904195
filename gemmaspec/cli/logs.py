"""`gemmaspec logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("logs")(logs)


def logs(
    name: options.Stack,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the server ends, or Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N lines.")] = None,
) -> None:
    """Print the log of a started profile, since its last start."""
    from gemmaspec.deploy import stacks

    started = stacks.find(name)
    for line in stacks.engine_of(started).logs(started.server, follow=follow, tail=tail):
        output.data(line)
