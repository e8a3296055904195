"""What `gemmaspec predict` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from gemmaspec.check.predict.envelope import Speeds, envelope_json, speeds_of, table_line
from gemmaspec.check.predict.predict import Predicted, baseline_of
from gemmaspec.check.use_cases.predict import Prediction
from gemmaspec.cli.text import table
from gemmaspec.core.rows import setting_json

_COLUMNS = (
    table.Column("method"), table.number("k"), table.number("requests"), table.number("tok/s"),
    table.number("90 %", 1), table.number("speedup", 2), table.number("E(k)", 3), table.number("ms/step", 4),
    table.number("first token", 5),
)  # fmt: skip


def document(prediction: Prediction) -> dict[str, Any]:
    """Return the prediction as JSON."""
    best = []
    for (setting, context), rows in groupby(prediction.rows, key=lambda row: (row.setting, row.context)):
        for method, speeds in _speeds(list(rows)):
            best.append({"method": method, "context": context, **setting_json(setting), **envelope_json(speeds)})
    asked: dict[str, Any] = {
        "profile": prediction.profile,
        "machine": prediction.machine,
        "own_k": dict(prediction.own_k),
    }
    asked["warnings"] = list(prediction.warnings)
    return {"ok": True, **asked, **prediction.as_json(), "envelope": best}


def lines(prediction: Prediction, *, width: int | None) -> Iterator[str]:
    """Yield the prediction for people, for `width` characters; None for no limit."""
    yield f"{prediction.profile}: predicted from {told(prediction.why)}"
    for note in prediction.notes:
        yield f"  note      {note}"
    for (setting, context), group in groupby(prediction.rows, key=lambda row: (row.setting, row.context)):
        rows = list(group)
        yield ""
        if any(row.first_token for row in rows):
            answers = f", answers of {rows[0].answer_tokens:,}"
        else:
            answers = ""
        rate = counted(prompt=bool(rows[0].first_token))
        yield f"  {setting}, {context:,} prompt tokens{answers}; tok/s {rate}"
        cells = [_cells(row, baseline_of(row, rows)) for row in rows]
        yield from table.lines(_COLUMNS, cells, width=width, indent="  ")
        yield from _best(rows)
        for _, speeds in _speeds(rows):
            yield from (f"  {line}" for line in table_line(speeds))
    if any(row.curve.measured < row.k for row in prediction.rows):
        yield ""
        yield "  ~ acceptance at the last positions was not measured; the curve is extrapolated"


def counted(*, prompt: bool) -> str:
    """Return what tokens per second are of: the whole request, or all after its first token."""
    if prompt:
        return "with the prompt"
    return "decoding"


def told(why: str) -> str:
    """Return what a prediction was made from, for people: of several runs the first, and how many there are."""
    first, *more = why.split("; ")
    if more:
        return f"{first}; and {len(more)} more run{'s'[: len(more) > 1]}, which --json names"
    return first


def _cells(row: Predicted, baseline: Predicted | None) -> tuple[str, ...]:
    low, high = row.interval
    if baseline and row.k:
        times = f"{row.tokens_per_second / baseline.tokens_per_second:.2f}"
    else:
        times = "-"
    guessed = "~" if row.curve.measured < row.k else ""
    first_token = f"{row.first_token:.2f} s" if row.first_token else "-"
    return (
        row.method,
        str(row.k),
        str(row.concurrency),
        f"{row.tokens_per_second:,.1f}",
        f"{low:,.1f} - {high:,.1f}",
        times,
        f"{guessed}{row.curve.tokens_per_step:.2f}",
        f"{row.step.seconds * 1000:.2f}",
        first_token,
    )


def _speeds(rows: Sequence[Predicted]) -> Iterator[tuple[str, Speeds]]:
    """Yield each method that drafts and its speeds by load and k, with those of no speculation."""
    for method in dict.fromkeys(row.method for row in rows if row.k):
        of_method = (row for row in rows if row.method == method or not row.k)
        yield method, speeds_of((row.concurrency, row.k, row.tokens_per_second) for row in of_method)


def _best(rows: list[Predicted]) -> Iterator[str]:
    """Yield the fastest setting of each concurrency, if there are several."""
    for concurrency in dict.fromkeys(row.concurrency for row in rows):
        at_load = [row for row in rows if row.concurrency == concurrency]
        best = max(at_load, key=lambda row: row.tokens_per_second)
        rivals = [row for row in at_load if row is not best and row.interval[1] > best.tokens_per_second]
        if len(rivals) == 1:
            others = "1 other"
        else:
            others = f"{len(rivals)} others"
        close = f"; {others} may be as fast" if rivals else ""
        if len(at_load) > 1:
            if best.k:
                drafts = f"{best.method} k={best.k}"
            else:
                drafts = "no speculation"
            yield f"  fastest at {concurrency}: {drafts}, {best.tokens_per_second:,.1f} tok/s{close}"
