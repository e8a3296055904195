"""What `gemmaspec predict` prints."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from gemmaspec.deploy.predict import Prediction
from gemmaspec.predict.predict import Predicted, baseline_of, predicted_json


def document(found: Prediction) -> dict[str, Any]:
    """The whole answer as JSON."""
    rows = [predicted_json(one, baseline=baseline_of(one, found.rows)) for one in found.rows]
    return {
        "ok": True,
        "profile": found.profile,
        "basis": found.basis,
        "why": found.why,
        "notes": list(found.notes),
        "rows": rows,
    }


def lines(found: Prediction) -> Iterator[str]:
    """The whole answer for people."""
    yield f"{found.profile}: predicted from {found.why}"
    for note in found.notes:
        yield f"  note      {note}"
    for (setting, context), group in groupby(found.rows, key=lambda one: (one.setting, one.context)):
        rows = list(group)
        yield ""
        yield f"  {setting}, {context:,} tokens of prompt"
        yield f"  {'method':<12}{'k':>3}{'at once':>9}{'tok/s':>10}{'90 %':>18}{'times':>8}{'E(k)':>7}{'ms a step':>11}"
        yield from (_line(one, baseline_of(one, rows)) for one in rows)
        yield from _best(rows)
    if any(one.curve.measured < one.k for one in found.rows):
        yield ""
        yield "  ~ the acceptance of the last positions was not measured, and goes on as the curve does"


def _line(one: Predicted, baseline: Predicted | None) -> str:
    low, high = one.interval
    times = f"{one.tokens_per_second / baseline.tokens_per_second:.2f}" if baseline and one.k else "-"
    guessed = "~" if one.curve.measured < one.k else ""
    expected = f"{guessed}{one.curve.tokens_per_step:.2f}"
    return (
        f"  {one.method:<12}{one.k:>3}{one.concurrency:>9}{one.tokens_per_second:>10,.1f}"
        f"{f'{low:,.1f} - {high:,.1f}':>18}{times:>8}{expected:>7}{one.step.seconds * 1000:>11.2f}"
    )


def _best(rows: list[Predicted]) -> Iterator[str]:
    """The fastest of each concurrency, where there is a choice."""
    for concurrency in dict.fromkeys(one.concurrency for one in rows):
        own = [one for one in rows if one.concurrency == concurrency]
        best = max(own, key=lambda one: one.tokens_per_second)
        rivals = [one for one in own if one is not best and one.interval[1] > best.tokens_per_second]
        close = f"; {len(rivals)} more may be as fast" if rivals else ""
        if len(own) > 1:
            said = f"{best.method} k={best.k}" if best.k else "no speculation"
            yield f"  fastest at {concurrency}: {said}, {best.tokens_per_second:,.1f} tok/s{close}"
