"""`gemmaspec inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hugging Face id (owner/name), folder (/…, ~/…, ./…), or profile (its target and draft).",
            autocompletion=options.complete_profile,
            show_default=False,
        ),
    ],
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="Draft to check against the target.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REVISION", help="Branch, tag or commit of the target.")
    ] = None,
    draft_revision: Annotated[
        str | None, typer.Option("--draft-revision", metavar="REVISION", help="Branch, tag or commit of the draft.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use folders and the cache only, no network.")] = False,
    json: options.Json = False,
) -> None:
    """Describe a checkpoint without loading it: layers, quantization as declared and as stored, bytes per part.

    Reads only configuration files and the headers of the weights, by range requests if the checkpoint is remote. Exit
    code 3 if a checkpoint cannot be loaded, or if the draft does not work with the target.
    """
    from gemmaspec.cli.text import inspect as text
    from gemmaspec.deploy.checks import inspect as use_case

    request = use_case.InspectRequest(
        target=target, draft=draft, revision=revision, draft_revision=draft_revision, offline=offline
    )
    inspection = use_case.inspect(request)
    text.inspection(inspection, as_json=json)
    raise typer.Exit(0 if inspection.works else 3)
