"""Tables that fit the terminal: the least important columns are dropped, and the others are never cut."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gemmaspec.cli import output

GAP = "  "


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    rank: int = 0
    """0: never dropped; of the others, the highest is dropped first."""
    right: bool = False
    """Whether it is aligned to the right, as numbers are."""
    wraps: bool = False
    """Whether its text may continue on the next line, broken at blanks. Only the last column may."""


number = partial(Column, right=True)
"""A column of numbers."""
_LEAST = 24
"""The narrowest column, in characters, in which wrapped text is readable."""


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, titles: bool = True) -> None:
    """Print a table that fits standard output; in a pipe, every column."""
    output.data("\n".join(lines(columns, rows, width=output.width_of(sys.stdout), titles=titles)))


def answer(
    document: Mapping[str, Any], columns: Sequence[Column], rows: Sequence[Sequence[str]], *, as_json: bool
) -> None:
    """Print what a command answers: the document of `--json`, or this table."""
    if as_json:
        output.json_data(document)
    else:
        show(columns, rows)


def lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    titles: bool = True,
    indent: str = "",
) -> list[str]:
    """Return a table's lines, each after `indent`; `width` is in characters, None for no limit."""
    width = width and max(width - len(indent), 1)
    rows = [[cell.replace("\n", r"\n") for cell in row] for row in rows]
    kept = _kept(columns, rows, width)
    widths = {index: max((len(row[index]) for row in _all(columns, rows, titles)), default=0) for index in kept}
    made = []
    for row in _all(columns, rows, titles):
        cells = [f"{row[index]:{'>' if columns[index].right else '<'}{widths[index]}}" for index in kept]
        line = _fit(GAP.join(cells).rstrip(), sum(widths[index] + len(GAP) for index in kept[:-1]), width)
        made += [f"{indent}{part}" for part in line]
    return made


def _all(columns: Sequence[Column], rows: Sequence[Sequence[str]], titles: bool) -> list[Sequence[str]]:
    if not titles:
        return list(rows)
    return [[column.title for column in columns], *rows]


def _kept(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    kept = list(range(len(columns)))
    while width and _least(columns, rows, kept) > width:
        spare = [index for index in kept if columns[index].rank > 0]
        if not spare:
            break
        kept.remove(max(spare, key=lambda index: columns[index].rank))
    return kept


def _least(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    widths = []
    for index in kept:
        cells = [columns[index].title, *(row[index] for row in rows)]
        full = max(map(len, cells))
        widths.append(min(full, _LEAST) if columns[index].wraps else full)
    return sum(widths) + len(GAP) * (len(kept) - 1)


def _fit(line: str, indent: int, width: int | None) -> list[str]:
    """Return a line whose last column continues on the next line if it is too long."""
    import textwrap

    if width is None or len(line) <= width or len(line) <= indent:
        return [line]
    head, text = line[:indent], line[indent:]
    parts = textwrap.wrap(text, max(width - indent, _LEAST), break_long_words=False, break_on_hyphens=False)
    return [head + parts[0], *(" " * indent + part for part in parts[1:])]
