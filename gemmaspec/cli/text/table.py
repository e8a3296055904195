"""Tables that fit the terminal: columns that matter least are left out, and no letter of the others is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gemmaspec.cli import output

GAP = "  "


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    rank: int = 0
    """0 is never left out; of the others the highest goes first."""
    wraps: bool = False
    """Whether its text may go on below, at blanks: at most one column does, and it comes last."""


_LEAST = 24
"""Columns that a text which goes on below needs to be readable."""


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, titles: bool = True) -> None:
    """Print a table as wide as standard output is; in a pipe, all of it."""
    output.data("\n".join(lines(columns, rows, width=output.width_of(sys.stdout), titles=titles)))


def lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None, titles: bool = True
) -> list[str]:
    """Return a table's lines; `width` is in characters, None for as wide as it is."""
    kept = _kept(columns, rows, width)
    widths = {index: max((len(row[index]) for row in _all(columns, rows, titles)), default=0) for index in kept}
    made = []
    for row in _all(columns, rows, titles):
        cells = [f"{row[index]:<{widths[index]}}" for index in kept]
        made.append(_fit(GAP.join(cells).rstrip(), sum(widths[index] + len(GAP) for index in kept[:-1]), width))
    return made


def _all(columns: Sequence[Column], rows: Sequence[Sequence[str]], titles: bool) -> list[Sequence[str]]:
    return [*([tuple(column.title for column in columns)] if titles else []), *rows]


def _kept(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the columns that fit, by their place."""
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
        full = max(len(cell) for cell in (columns[index].title, *(row[index] for row in rows)))
        widths.append(min(full, _LEAST) if columns[index].wraps else full)
    return sum(widths) + len(GAP) * (len(kept) - 1)


def _fit(line: str, indent: int, width: int | None) -> str:
    """Return a line whose last column goes on below, if it is too long."""
    import textwrap

    if width is None or len(line) <= width or len(line) <= indent:
        return line
    head, text = line[:indent], line[indent:]
    parts = textwrap.wrap(text, max(width - indent, _LEAST), break_long_words=False, break_on_hyphens=False)
    return "\n".join([head + parts[0], *(" " * indent + part for part in parts[1:])])
