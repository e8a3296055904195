"""`gemmaspec down`."""

from __future__ import annotations

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("down")(down)


def down(name: options.Stack, json: options.Json = False) -> None:
    """Stop a started profile. Its files, caches and models stay."""
    from gemmaspec.deploy import down as use_case

    was_running = use_case.down(name, output.progress)
    if json:
        output.json_data({"ok": True, "name": name, "was_running": was_running})
        return
    output.progress(f"{name} is stopped" if was_running else f"{name} was not running")
