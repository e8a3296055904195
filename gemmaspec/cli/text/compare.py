"""What `gemmaspec compare` prints for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gemmaspec.cli.text import page, table
from gemmaspec.measure.bench.compare import CellChange, Comparison

_SHOWN = 60

_COLUMNS = (
    table.Column("method"), table.number("k"), table.number("requests"), table.number("context"),
    table.number("A tok/s", 3), table.number("B tok/s", 4), table.number("change"), table.number("noise", 2),
    table.number("E(k)", 5), table.number("ms/step", 6), table.Column(""),
)  # fmt: skip


def lines(comparison: Comparison, a: str, b: str, *, width: int | None) -> Iterator[str]:
    """Yield what differs, a row for each cell, and the verdict, for `width` characters; None for no limit."""
    yield f"A  {a}"
    yield f"B  {b}"
    yield ""
    differences = [(gap.what, f"{_short(gap.a)} → {_short(gap.b)}") for gap in comparison.differences]
    same = [("nothing", "the same profile, stack and settings")]
    yield from page.lines("what differs", differences or same)
    yield ""
    patched = any(change.patches != "none" for change in comparison.changes)
    columns = (*_COLUMNS[:2], table.Column("patches", rank=1), *_COLUMNS[2:]) if patched else _COLUMNS
    cells = [_cells(change) for change in comparison.changes]
    if patched:
        cells = [(*row[:2], change.patches, *row[2:]) for row, change in zip(cells, comparison.changes, strict=True)]
    yield from table.lines(columns, cells, width=width, indent="  ")
    yield from page.rows_below(_remarks(comparison), names=None)
    yield ""
    yield _verdict(comparison)
    if comparison.lost:
        yield "B is incomplete: its run ended before it had measured all of A's cells"


def _remarks(comparison: Comparison) -> Iterator[page.Row]:
    """Yield what a reader must know of the table."""
    yield from page.named("only in A", comparison.only_a)
    yield from page.named("only in B", comparison.only_b)
    if not all(change.steady for change in comparison.changes):
        yield "!", "the machine became slower or faster during this cell; measure it again before you rely on it"
    if any(change.assumed for change in comparison.changes):
        yield "(noise)", "is assumed, because only one round counts; bench --rounds 2 measures it"


def _cells(cell: CellChange) -> tuple[str, ...]:
    a, b = cell.a, cell.b
    noise = f"{cell.noise:.1%}"
    load = (cell.method, str(cell.k), str(cell.concurrency), f"{cell.context:,}")
    speeds = (f"{a['tokens_per_second']:,.1f}", f"{b['tokens_per_second']:,.1f}", f"{cell.change:+.1%}")
    why = (
        f"{a['acceptance_length']:.2f} → {b['acceptance_length']:.2f}",
        f"{a['step_ms']:.2f} → {b['step_ms']:.2f}",
    )
    return (*load, *speeds, f"({noise})" if cell.assumed else noise, *why, _mark(cell))


def _mark(cell: CellChange) -> str:
    """Return how B compares, marked where the machine was not steady; nothing for the same within noise."""
    word = "" if cell.verdict == "same" else cell.verdict
    if cell.steady:
        return word
    return f"{word} !"


def _verdict(comparison: Comparison) -> str:
    slower = sum(change.slower for change in comparison.changes)
    faster = sum(change.faster for change in comparison.changes)
    cells = len(comparison.changes)
    same = cells - slower - faster
    return f"of {cells} cell{'s'[: cells > 1]}, B is faster in {faster}, slower in {slower} and within noise in {same}"


def _short(value: Any) -> str:
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = "".join(char for char in text if char.isprintable())
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN - 1]}…"
