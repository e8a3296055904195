"""`gemmaspec connect`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options, output


def complete_client(incomplete: str) -> list[str]:
    """Return the clients that begin with what was typed."""
    from gemmaspec.deploy.views.connect import CLIENTS

    return [name for name in CLIENTS if name.startswith(incomplete)]


def connect(
    client: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLIENT]",
            help="The program; without one, list them.",
            autocompletion=complete_client,
            show_default=False,
        ),
    ] = None,
    name: options.OptionalStack = None,
    json: options.Json = False,
) -> None:
    """Print the settings by which another program uses a started profile.

    The settings go to standard output, so that they can be written to a file. A key is named, never printed.
    """
    from gemmaspec.deploy.views import connect as use_case

    if client is None:
        if json:
            output.json_data({"clients": {key: one.title for key, one in use_case.CLIENTS.items()}})
            return
        for key, one in use_case.CLIENTS.items():
            output.data(f"gemmaspec connect {key:<13}{one.title}")
        return
    to = use_case.endpoint(name)
    text, said = use_case.settings(client, to), use_case.warnings(client, to)
    if json:
        output.json_data({**vars(to), "client": client, "settings": text, "warnings": said})
        return
    output.progress(f"{use_case.CLIENTS[client].title}, for {use_case.CLIENTS[client].where}:")
    output.data(text)
    for warning in said:
        output.progress(f"warning: {warning}")
