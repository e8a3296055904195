"""`gemmaspec inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options


def inspect(
    target: Annotated[str, options.argument("MODEL", autocompletion=options.complete_profile)],
    draft: Annotated[str | None, options.option("--draft")] = None,
    revision: Annotated[str | None, options.option("--revision")] = None,
    draft_revision: Annotated[str | None, options.option("--draft-revision")] = None,
    offline: Annotated[bool, options.option("--offline")] = False,
    json: options.Json = False,
) -> None:
    """Describe a checkpoint without loading it: layers, quantization as declared and as stored, bytes per part.

    Reads only configuration files and the headers of the weights, by range requests if the checkpoint is remote. Exit
    code 3 if a checkpoint cannot be loaded, or if the draft does not work with the target.
    """
    from gemmaspec.check.use_cases import inspect as use_case
    from gemmaspec.cli.text import inspect as text

    request = use_case.InspectRequest(
        **options.given(target=target, draft=draft, revision=revision, draft_revision=draft_revision, offline=offline)
    )
    inspection = use_case.inspect(request)
    text.inspection(inspection, as_json=json)
    raise typer.Exit(0 if inspection.works else 3)
