"""What `gemmaspec predict` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from gemmaspec.cli.text import table
from gemmaspec.deploy.checks.predict import Prediction
from gemmaspec.predict.envelope import Speeds, envelope_json, speeds_of, table_line
from gemmaspec.predict.predict import Predicted, baseline_of
from gemmaspec.rows import setting_json

_COLUMNS = (
    table.Column("method"),
    table.Column("k", right=True),
    table.Column("requests", right=True),
    table.Column("tok/s", right=True),
    table.Column("90 %", rank=1, right=True),
    table.Column("speedup", rank=2, right=True),
    table.Column("E(k)", rank=3, right=True),
    table.Column("ms/step", rank=4, right=True),
    table.Column("first token", rank=5, right=True),
)


def document(found: Prediction) -> dict[str, Any]:
    """Return the prediction as JSON."""
    groups = groupby(found.rows, key=lambda one: (one.setting, one.context))
    best = [
        {"method": method, "context": context, **setting_json(setting), **envelope_json(speeds)}
        for (setting, context), rows in groups
        for method, speeds in _speeds(list(rows))
    ]
    return {"ok": True, "profile": found.profile, **found.as_json(), "envelope": best}


def lines(found: Prediction, *, width: int | None) -> Iterator[str]:
    """Yield the prediction for people, for `width` characters; None for no limit."""
    yield f"{found.profile}: predicted from {found.why}"
    for note in found.notes:
        yield f"  note      {note}"
    for (setting, context), group in groupby(found.rows, key=lambda one: (one.setting, one.context)):
        rows = list(group)
        yield ""
        answers = f", answers of {rows[0].answer_tokens:,}" if any(one.first_token for one in rows) else ""
        yield f"  {setting}, {context:,} prompt tokens{answers}"
        cells = [_cells(one, baseline_of(one, rows)) for one in rows]
        yield from table.lines(_COLUMNS, cells, width=width, indent="  ")
        yield from _best(rows)
        for _, speeds in _speeds(rows):
            yield from (f"  {line}" for line in table_line(speeds))
    if any(one.curve.measured < one.k for one in found.rows):
        yield ""
        yield "  ~ acceptance at the last positions was not measured; the curve is extrapolated"


def _cells(one: Predicted, baseline: Predicted | None) -> tuple[str, ...]:
    low, high = one.interval
    times = f"{one.tokens_per_second / baseline.tokens_per_second:.2f}" if baseline and one.k else "-"
    guessed = "~" if one.curve.measured < one.k else ""
    return (
        one.method,
        str(one.k),
        str(one.concurrency),
        f"{one.tokens_per_second:,.1f}",
        f"{low:,.1f} - {high:,.1f}",
        times,
        f"{guessed}{one.curve.tokens_per_step:.2f}",
        f"{one.step.seconds * 1000:.2f}",
        f"{one.first_token:.2f} s" if one.first_token else "-",
    )


def _speeds(rows: Sequence[Predicted]) -> Iterator[tuple[str, Speeds]]:
    """Yield each method that drafts and its speeds by load and k, with those of no speculation."""
    for method in dict.fromkeys(one.method for one in rows if one.k):
        own = (one for one in rows if one.method == method or not one.k)
        yield method, speeds_of((one.concurrency, one.k, one.tokens_per_second) for one in own)


def _best(rows: list[Predicted]) -> Iterator[str]:
    """Yield the fastest setting of each concurrency, if there are several."""
    for concurrency in dict.fromkeys(one.concurrency for one in rows):
        own = [one for one in rows if one.concurrency == concurrency]
        best = max(own, key=lambda one: one.tokens_per_second)
        rivals = [one for one in own if one is not best and one.interval[1] > best.tokens_per_second]
        others = "1 other" if len(rivals) == 1 else f"{len(rivals)} others"
        close = f"; {others} may be as fast" if rivals else ""
        if len(own) > 1:
            said = f"{best.method} k={best.k}" if best.k else "no speculation"
            yield f"  fastest at {concurrency}: {said}, {best.tokens_per_second:,.1f} tok/s{close}"
