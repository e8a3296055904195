"""What `gemmaspec compare` prints for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gemmaspec.bench.compare import CellChange, Comparison
from gemmaspec.cli.text import table

_SHOWN = 60

_COLUMNS = (
    table.Column("method"),
    table.Column("k", right=True),
    table.Column("requests", right=True),
    table.Column("context", right=True),
    table.Column("A tok/s", rank=3, right=True),
    table.Column("B tok/s", rank=4, right=True),
    table.Column("change", right=True),
    table.Column("noise", rank=2, right=True),
    table.Column("E(k)", rank=5, right=True),
    table.Column("ms/step", rank=6, right=True),
    table.Column(""),
)


def lines(found: Comparison, a: str, b: str, *, width: int | None) -> Iterator[str]:
    """Yield what differs, a row for each cell, and the verdict, for `width` characters; None for no limit."""
    yield f"A  {a}"
    yield f"B  {b}"
    yield ""
    yield "what differs"
    for one in found.differences:
        yield f"  {one.what:<30}  {_short(one.a)} → {_short(one.b)}"
    if not found.differences:
        yield "  nothing: the same profile, stack and settings"
    yield ""
    patched = any(change.patches != "none" for change in found.changes)
    columns = (*_COLUMNS[:2], table.Column("patches", rank=1), *_COLUMNS[2:]) if patched else _COLUMNS
    cells = [_cells(change) for change in found.changes]
    if patched:
        cells = [(*row[:2], change.patches, *row[2:]) for row, change in zip(cells, found.changes, strict=True)]
    yield from table.lines(columns, cells, width=width, indent="  ")
    for name, side in ((found.only_a, "A"), (found.only_b, "B")):
        yield from (f"  only in {side}: {one}" for one in name)
    if not all(one.steady for one in found.changes):
        yield "  ! the machine became slower or faster during this cell; measure it again before you rely on it"
    if any(one.assumed for one in found.changes):
        yield "  noise in parentheses is assumed, because only one round counts; bench --rounds 2 measures it"
    yield ""
    yield _verdict(found)
    if found.lost:
        yield "B is incomplete: its run ended before it had measured all of A's cells"


def _cells(one: CellChange) -> tuple[str, ...]:
    return (
        one.method,
        str(one.k),
        str(one.concurrency),
        f"{one.context:,}",
        f"{one.a['tokens_per_second']:,.1f}",
        f"{one.b['tokens_per_second']:,.1f}",
        f"{one.change:+.1%}",
        f"({one.noise:.1%})" if one.assumed else f"{one.noise:.1%}",
        f"{one.a['acceptance_length']:.2f} → {one.b['acceptance_length']:.2f}",
        f"{one.a['step_ms']:.2f} → {one.b['step_ms']:.2f}",
        ("slower" if one.slower else "faster" if one.faster else "") + ("" if one.steady else " !"),
    )


def _verdict(found: Comparison) -> str:
    slower = sum(one.slower for one in found.changes)
    faster = sum(one.faster for one in found.changes)
    cells = len(found.changes)
    return (
        f"of {cells} cells, B is faster in {faster}, slower in {slower} and within noise in {cells - slower - faster}"
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
