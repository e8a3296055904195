"""`gemmaspec patch measure`."""

from __future__ import annotations

import typer

from gemmaspec.cli import options, output


def add_to(group: typer.Typer) -> None:
    """Register the command in the group `patch`."""
    group.command("measure")(measure)


def measure(
    profile: options.Profile,
    patches: options.PatchIds = None,
    dry_run: options.DryRun = False,
    engine: options.Engine = None,
    overrides: options.Set = None,
    json: options.Json = False,
) -> None:
    """Measure on this GPU which patches for speed pay for a profile, and keep the result for its next start.

    Times the calls that each patch changes, on vLLM as released and on the patched one in turns, in the image or
    environment that would run the profile. Its server must be stopped. A patch is taken if it computes the same, no
    call is slower by more than 3 %, and a whole step or prompt is faster by 3 %. Exit code 1 if a patch could not be
    measured.
    """
    from gemmaspec.cli.text import measured as text
    from gemmaspec.serve import spot

    request = spot.MeasureRequest(**options.given(profile=profile, overrides=overrides, engine=engine, patches=patches))
    if dry_run:
        text.planned(spot.plan(request), as_json=json)
        return
    outcome = spot.measure(request, output.progress)
    text.measured(outcome, as_json=json)
    raise typer.Exit(0 if all(one.is_settled for one in outcome.found) else 1)
