"""`gemmaspec smoke`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options
from gemmaspec.core.errors import UsageError


def smoke(
    name: options.OptionalStack = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="Run only this check, such as S9. Repeatable."),
    ] = None,
    skip: Annotated[list[str] | None, typer.Option("--skip", metavar="ID", help="Skip this check. Repeatable.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="URL|NAME",
            help="Compare greedy texts with this server, which must not speculate.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the checks; send no request.")] = False,
    request_s: Annotated[
        float, typer.Option("--request-timeout", metavar="SECONDS", min=1, help="Time limit for one answer.")
    ] = 120,
    run_s: Annotated[
        float,
        typer.Option(
            "--run-timeout", metavar="SECONDS", min=1, help="Time limit for all checks; those left over are unknown."
        ),
    ] = 600,
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
    request = options.request(use_case.SmokeRequest, locals())
    with text.progress() as progress:
        report = use_case.smoke(request, progress)
    text.show(report, as_json=json)
    if report.verdict.failed:
        raise typer.Exit(1)
    if any(row.word == "unknown" and row.counts for row in report.rows):
        raise typer.Exit(4)
