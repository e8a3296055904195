"""`gemmaspec predict`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from gemmaspec.cli import options, output


def predict(
    profile: options.Profile,
    measured: Annotated[Path | None, options.option("--measured")] = None,
    ks: options.Drafts = None,
    concurrencies: options.Concurrency = None,
    contexts: options.Context = None,
    machine: options.Machine = None,
    answer_tokens: Annotated[int | None, options.option("--answer-tokens", min=2)] = None,
    other_machine: Annotated[bool, options.option("--accept-other-machine")] = False,
    overrides: options.Set = None,
    explain: options.Explain = False,
    html: Annotated[Path | None, options.option("--html")] = None,
    json: options.Json = False,
) -> None:
    """Predict tokens per second for each draft length, concurrency and context, with a 90 % interval.

    Uses, in this order: measured cells (--measured FILE), those of bench --save-measured, shipped measurements of a
    similar machine, or the bytes that a step reads. The output says which. Starts nothing.
    """
    from gemmaspec.check.use_cases.predict import PredictRequest, predict_profile
    from gemmaspec.cli.text import page, predict_brief, predict_page
    from gemmaspec.cli.text import predict as text
    from gemmaspec.core.files import write_whole
    from gemmaspec.core.rows import MAX_CONTEXT

    lengths = options.whole_numbers(contexts, "--context", low=0, high=MAX_CONTEXT)
    request = PredictRequest(
        **options.given(
            profile=profile,
            overrides=overrides,
            machine=machine,
            measured=measured,
            other_machine=other_machine,
            ks=ks,
            concurrencies=concurrencies,
            answer_tokens=answer_tokens,
        ),
        contexts=lengths,
    )
    predicted = predict_profile(request)
    document = text.document(predicted)
    if html:
        write_whole(html, predict_page.page(document))
        output.progress(f"wrote {html}")
    lines = predict_brief.lines(document)
    if explain:
        lines = text.lines(predicted, width=output.width_of(sys.stdout))
    page.answer(document, lines, as_json=json)
