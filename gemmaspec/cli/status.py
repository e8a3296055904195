"""`gemmaspec status`."""

from __future__ import annotations

import typer

from gemmaspec.cli import options


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("status")(status)


def status(name: options.OptionalStack = None, json: options.Json = False) -> None:
    """Show what runs: starting (with its phase), ready, exited, stopped or unknown, and since when.

    With NAME also its patches as the server itself reports them, and how well it drafts. Exit code 5 when a file of
    the plan, the overlay or the package was changed since the start, 4 when it cannot be told whether something
    runs, 1 when NAME is given and does not run.
    """
    from gemmaspec.cli.text import status as text
    from gemmaspec.deploy.status import status as use_case

    found = use_case(name)
    text.show(found, one=bool(name), as_json=json)
    if any(one.changed for one in found):
        raise typer.Exit(5)
    if any(one.word == "unknown" for one in found):
        raise typer.Exit(4)
    if name and found[0].word in ("exited", "stopped"):
        raise typer.Exit(1)
