"""`gemmaspec export`."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the group."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Dashboards and alerts for other programs.")
    group.command("grafana")(grafana)
    group.command("prometheus")(prometheus)
    app.add_typer(group, name="export")


def grafana() -> None:
    """Print a Grafana dashboard as JSON.

    It has the speculation panels that vLLM's own dashboards lack. Import it under Dashboards, New, Import.

    Example:

      gemmaspec export grafana > gemmaspec.json
    """
    from gemmaspec.live.grafana import dashboard

    output.data(json_.dumps(dashboard(), indent=2))


def prometheus(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Names of started profiles; all if none is given.",
            autocompletion=options.complete_stack,
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write.")] = Path("prometheus"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json: options.Json = False,
) -> None:
    """Write a Prometheus configuration and alert rules.

    Example:

      gemmaspec export prometheus spark-31b-mtp --out monitoring
    """
    from gemmaspec.deploy.export import prometheus_files, write_new

    written = write_new(prometheus_files(names or ()), out, force=force)
    if json:
        output.json_data({"ok": True, "files": [str(one) for one in written]})
        return
    for one in written:
        output.data(str(one))
