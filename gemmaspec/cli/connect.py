"""`gemmaspec connect`."""

from __future__ import annotations

from typing import Annotated

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page
from gemmaspec.core.errors import UsageError


def complete_client(incomplete: str) -> list[str]:
    """Return the clients that begin with what was typed."""
    from gemmaspec.look.connect import CLIENTS
    from gemmaspec.look.monitors import MONITORS

    return [name for name in (*CLIENTS, *MONITORS) if name.startswith(incomplete)]


def connect(
    client: Annotated[str | None, options.argument("[CLIENT]", autocompletion=complete_client)] = None,
    names: Annotated[list[str] | None, options.argument("[NAME]...", autocompletion=options.complete_stack)] = None,
    json: options.Json = False,
) -> None:
    """Print the settings by which another program uses or watches started profiles.

    The settings go to standard output, so that they can be written to a file. A key is named, never printed.
    """
    from gemmaspec.look import connect as use_case
    from gemmaspec.look.monitors import MONITORS

    if client is None:
        titles = {key: known.title for key, known in use_case.CLIENTS.items()}
        titles |= {key: monitor.title for key, monitor in MONITORS.items()}
        lines = (f"gemmaspec connect {key:<17}{title}" for key, title in titles.items())
        page.answer({"clients": titles}, lines, as_json=json)
        return
    if client in MONITORS:
        file = MONITORS[client].text(names or ())
        if json:
            output.json_data({"client": client, "settings": file, "warnings": []})
            return
        output.progress(f"{MONITORS[client].title}, for {MONITORS[client].where}:")
        output.data(file)
        return
    use_case.check_client(client)
    if names and len(names) > 1:
        raise UsageError(f"{client} takes one server", hint=f"gemmaspec connect {client} {names[0]}")
    to = use_case.endpoint(names[0] if names else None)
    text, warnings, note = use_case.settings(client, to), use_case.warnings(client, to), use_case.note(client, to)
    if json:
        output.json_data({**vars(to), "client": client, "settings": text, "warnings": warnings, "note": note})
        return
    output.progress(f"{use_case.CLIENTS[client].title}, for {use_case.where(client, to)}:")
    output.data(text)
    for warning in warnings:
        output.progress(f"warning: {warning}")
    if note:
        output.progress(f"note: {note}")
