"""`gemmaspec predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("predict")(predict)


def predict(
    profile: options.Profile,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Measured cells, as bench writes them (a file, or bench's folder), instead of those that are known.",
        ),
    ] = None,
    k: Annotated[
        str | None,
        typer.Option("--k", metavar="LIST", help="Drafted tokens, as in 0,1,2,6; 0 is without speculation."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", metavar="LIST", help="Requests at once, as in 1,4,8.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="LIST", help="Tokens of prompt, as in 256,8192; those measured when not given."
        ),
    ] = None,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Predict tokens per second for every k, concurrency and context, with an interval that holds 90 %.

    From a few measured cells (--measured FILE), else from those of bench --save-measured, else from shipped
    measurements of a like machine, else from the bytes that a step reads. It says which. Starts nothing.
    """
    from gemmaspec.cli.text import predict as text
    from gemmaspec.deploy.predict import PredictRequest, predict_profile
    from gemmaspec.predict.rows import MAX_CONCURRENCY, MAX_CONTEXT, MAX_K

    found = predict_profile(
        PredictRequest(
            profile=profile,
            overrides=tuple(set_ or ()),
            measured=measured,
            ks=options.whole_numbers(k, "--k", low=0, high=MAX_K),
            concurrencies=options.whole_numbers(concurrency, "--concurrency", low=1, high=MAX_CONCURRENCY),
            contexts=options.whole_numbers(context, "--context", low=0, high=MAX_CONTEXT),
        )
    )
    if json:
        output.json_data(text.document(found))
        return
    for line in text.lines(found):
        output.data(line)
