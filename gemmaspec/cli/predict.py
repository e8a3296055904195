"""`gemmaspec predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output


def predict(
    profile: options.Profile,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Measured cells to predict from: a folder or file that bench wrote. [default: the known measurements]",
        ),
    ] = None,
    k: options.Drafts = None,
    concurrency: options.Concurrency = None,
    context: options.Context = None,
    machine: options.Machine = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            "--answer-tokens",
            metavar="N",
            min=2,
            help="Tokens of an answer: the longer, the less the prompt counts. [default: as measured, else 256]",
        ),
    ] = None,
    accept_other_machine: Annotated[
        bool,
        typer.Option("--accept-other-machine", help="Take --measured cells of another machine or target model."),
    ] = False,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Predict tokens per second for each draft length, concurrency and context, with a 90 % interval.

    Uses, in this order: measured cells (--measured FILE), those of bench --save-measured, shipped measurements of a
    similar machine, or the bytes that a step reads. The output says which. Starts nothing.
    """
    from gemmaspec.cli.text import predict as text
    from gemmaspec.deploy.checks.predict import PredictRequest, predict_profile
    from gemmaspec.rows import MAX_CONCURRENCY, MAX_CONTEXT, MAX_K

    found = predict_profile(
        PredictRequest(
            profile=profile,
            overrides=tuple(set_ or ()),
            machine=machine,
            measured=measured,
            other_machine=accept_other_machine,
            answer_tokens=answer_tokens,
            ks=options.whole_numbers(k, "--k", low=0, high=MAX_K),
            concurrencies=options.whole_numbers(concurrency, "--concurrency", low=1, high=MAX_CONCURRENCY),
            contexts=options.whole_numbers(context, "--context", low=0, high=MAX_CONTEXT),
        )
    )
    if json:
        output.json_data(text.document(found))
        return
    for line in text.lines(found, width=output.width_of(sys.stdout)):
        output.told(line)
