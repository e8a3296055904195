"""`gemmaspec diff`."""

from __future__ import annotations

import typer

from gemmaspec.cli import options, output


def diff(name: options.Stack, set_: options.Set = None, json: options.Json = False) -> None:
    """Show what a restart would change in the files, command and image of the running server.

    Renders the profile with the options it was started with. Exit code 0 if nothing would change, 3 if something would.
    """
    from gemmaspec.deploy.views.diff import drift

    found = drift(name, overrides=set_ or ())
    if json:
        output.json_data({"ok": found.same, **vars(found)})
    else:
        for one in found.keys:
            output.data(one)
        for text in (found.files, found.command, str(found.image) if found.image else ""):
            output.data(text) if text else None
        output.progress(
            f"{found.name} is up to date: a restart would change nothing ({found.engine})"
        ) if found.same else None
    raise typer.Exit(0 if found.same else 3)
