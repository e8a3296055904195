"""`gemmaspec status`."""

from __future__ import annotations

import typer

from gemmaspec.cli import options


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("status")(status)


def status(name: options.OptionalStack = None, json: options.Json = False) -> None:
    """Show what runs, its patches as the server itself reports them, and its acceptance length.

    Exit code 5 when a file of the plan, the overlay or the package was changed since the start, 4 when it cannot be
    told whether a server runs, 1 when NAME is given and is not running.
    """
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy.status import status as use_case

    found = use_case(name)
    stack.statuses(found, as_json=json)
    if any(one.findings for one in found):
        raise typer.Exit(5)
    if any(one.state.status == "unknown" for one in found):
        raise typer.Exit(4)
    if name and not found[0].running:
        raise typer.Exit(1)
