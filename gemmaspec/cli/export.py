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
    from gemmaspec.deploy.export import prometheus_files, write_new

    written = write_new(prometheus_files(names or ()), out, force=force)
    if json:
        output.json_data({"ok": True, "files": [str(one) for one in written]})
        return
    for one in written:
        output.data(str(one))
