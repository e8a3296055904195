"""`gemmaspec export`."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import help as help_
from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    group = help_.group("export")
    group.command("grafana")(grafana)
    group.command("prometheus")(prometheus)
    group.command("llama-swap")(llama_swap)
    group.command("open-webui")(open_webui)
    app.add_typer(group, name="export")


def grafana() -> None:
    """Print a Grafana dashboard as JSON.

    It has the speculation panels that vLLM's own dashboards lack. Import it under Dashboards, New, Import.
    """
    from gemmaspec.live.grafana import dashboard

    output.data(json_.dumps(dashboard(), indent=2))


def prometheus(
    names: options.Stacks = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write.")] = Path("prometheus"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: options.Json = False,
) -> None:
    """Write a Prometheus configuration and alert rules."""
    from gemmaspec.deploy.views.export import prometheus_files, write_new

    written = write_new(prometheus_files(names or ()), out, force=force)
    if json:
        output.json_data({"ok": True, "files": [str(one) for one in written]})
        return
    for one in written:
        output.data(str(one))


def llama_swap(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROFILE]...",
            help="Profiles. [default: the started ones]",
            autocompletion=options.complete_profile,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a configuration of llama-swap, which starts the profile that a request names and stops idle ones."""
    from gemmaspec.deploy.views.export import llama_swap as configuration

    output.data(configuration(names or ()))


def open_webui(name: options.OptionalStack = None) -> None:
    """Print a Compose file with Open WebUI, a chat page at http://127.0.0.1:3000, for a started profile."""
    from gemmaspec.deploy.views.export import open_webui as compose

    output.data(compose(name))
