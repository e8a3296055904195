"""Which draft is the fastest at each load of a result, in sentences, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from gemmaspec.measure.bench.result import mark_of, spread_of
from gemmaspec.measure.bench.rows import Row, speedup

Doubt = Literal["", "unsteady", "close"]
"""Nothing; a machine that changed meanwhile; or a lead that is smaller than what rounds differ by."""


def doubt_of(rows: Sequence[Row]) -> Doubt:
    """Return why the fastest of these rows may not be the fastest."""
    first, *others = sorted(rows, key=lambda row: -float(row["tokens_per_second"]))
    if any(mark_of(row) == "!" for row in rows):
        return "unsteady"
    lead = 1.0
    if others:
        lead = first["tokens_per_second"] / others[0]["tokens_per_second"] - 1
    if lead < max(spread_of(row) or 0.0 for row in rows):
        return "close"
    return ""


def sentences(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each load and prompt length of a result which row is the fastest, and how much faster than no draft."""
    rows: Sequence[Row] = document["rows"]
    for load, context, group in _loads(rows):
        drafts = {(row["method"], row["k"]) for row in group}
        if len(drafts) < 2:
            continue
        requests = f"{load:,} request{'s'[: load > 1]}"
        yield f"{requests} after {context:,} tokens: {_fastest(group, rows)}"


def _loads(rows: Sequence[Row]) -> Iterator[tuple[int, int, list[Row]]]:
    """Yield requests at once and the longest of about the same prompts, with the rows of both, in that order."""
    ordered = sorted(rows, key=lambda row: (row["concurrency"], row["context"]))
    for load, of_load in groupby(ordered, key=lambda row: row["concurrency"]):
        near: list[Row] = []
        for row in of_load:
            if near and row["context"] > 1.15 * near[0]["context"] + 8:
                yield load, near[-1]["context"], near
                near = []
            near.append(row)
        yield load, near[-1]["context"], near


def _fastest(group: Sequence[Row], rows: Sequence[Row]) -> str:
    best = max(group, key=lambda row: float(row["tokens_per_second"]))
    figure = f"{best['tokens_per_second']:,.1f} tokens/s"
    if best["k"]:
        method = str(best["method"]).replace("_", " ")
        times = speedup(best, rows)
        if times:
            gain = f", {times:.2f} times as fast as without a draft"
        else:
            gain = ""
        said = f"fastest with {method} and {best['k']} drafted tokens (k), {figure}{gain}"
    else:
        drafts = [row for row in group if row["k"]]
        second = max(drafts, key=lambda row: float(row["tokens_per_second"]), default=None)
        if second:
            lost = f"; the best draft makes {second['tokens_per_second']:,.1f}"
        else:
            lost = ""
        said = f"fastest without a draft, {figure}{lost}"
    if doubt := doubt_of(group):
        return f"{said}. {_WORDS[doubt]}"
    return f"{said}."


_WORDS: Mapping[Doubt, str] = {
    "unsteady": "Not sure: the machine became slower or faster meanwhile.",
    "close": "The lead is smaller than the difference between rounds.",
}
