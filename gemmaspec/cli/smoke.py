"""`gemmaspec smoke`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options
from gemmaspec.core.errors import UsageError


def smoke(
    name: options.OptionalStack = None,
    only: Annotated[list[str] | None, options.option("--only")] = None,
    skip: Annotated[list[str] | None, options.option("--skip")] = None,
    against: Annotated[str | None, options.option("--against")] = None,
    list_: Annotated[bool, options.option("--list", of="smoke")] = False,
    request_s: Annotated[float, options.option("--request-timeout", of="smoke", min=1)] = 120,
    run_s: Annotated[float, options.option("--run-timeout", min=1)] = 600,
    json: options.Json = False,
) -> None:
    """Check what a running server answers: thoughts, tools, JSON, loops, long prompts, images, drafting.

    Asks streamed and not, with thinking on and off, alone and up to eight at once. A check is left out by name where
    the profile does not offer what it needs. Exit code 1 if a check failed, 4 if one could not be judged. A warning
    fails nothing. The verdict of a whole run is kept; status shows it.
    """
    from gemmaspec.cli.text import smoke as text
    from gemmaspec.look import smoke as use_case
    from gemmaspec.measure.smoke.catalogue import CHECKS, chosen

    if list_:
        text.checks(chosen(only=only or (), skip=skip or ()) if only or skip else CHECKS, as_json=json)
        return
    if not name:
        raise UsageError("name a server", hint="gemmaspec status")
    request = use_case.SmokeRequest(
        **options.given(
            name=name,
            only=only,
            skip=skip,
            against=against,
            request_s=request_s,
            run_s=run_s,
        )
    )
    with text.progress() as progress:
        report = use_case.smoke(request, progress)
    text.show(report, as_json=json)
    if report.verdict.failed:
        raise typer.Exit(1)
    if any(row.word == "unknown" and row.counts for row in report.rows):
        raise typer.Exit(4)
