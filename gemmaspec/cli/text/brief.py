"""A short answer: a title, and below it a few named values, each on one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

GIB: Final = 2**30

Rows = Iterable[tuple[str, str | None]]
"""The name and the value of each line; a line without a value is left out."""


def lines(title: str, rows: Rows) -> Iterator[str]:
    """Yield the title, and the rows indented below it with their values in one column."""
    yield title
    kept = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        yield f"  {name:<{width}}  {value}"
