"""The printer of answers: a document for `--json`; for people a title, and below it named values, each on one line.

A command says what it has to show, in which order and in which words. Columns, indents and JSON are made here.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gemmaspec.cli import output

NAMES: Final = 9
"""Letters of the column of names: that of pages which are put together of several parts."""

_COLOURS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("ok", "pass"), 32),
    **dict.fromkeys(("warning", "warn"), 33),
    **dict.fromkeys(("error", "failed", "fail"), 31),
    **dict.fromkeys(("patch", "note"), 36),
    "skipped": 2,
    "unknown": 35,
}
"""The colour of each word that judges."""

Row = tuple[str, str | None]
"""A name and its value. Without a name it continues the row above it; without a value it is left out."""


def answer(document: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a command answers: the document, or these lines."""
    if as_json:
        output.json_data(document)
    else:
        output.told(*lines)


def lines(title: str, rows: Iterable[Row], *, names: int | None = None) -> Iterator[str]:
    """Yield the title, and the rows indented below it. `names`: as for `rows_below`."""
    yield title
    yield from rows_below(rows, names=names)


def rows_below(rows: Iterable[Row], *, names: int | None = NAMES, indent: int = 2) -> Iterator[str]:
    """Yield the rows with their values in one column.

    `names` is the width of the column of names in letters; None: one more than the longest of them.
    """
    kept = [(name, value) for name, value in rows if value]
    if names is None:
        names = 1 + max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        yield f"{' ' * indent}{name:<{names}} {value}"


def named(name: str, values: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each value; only the first has the name."""
    for value in values:
        yield name, value
        name = ""


def hanging(head: str, text: str, *, shown: int) -> Iterator[str]:
    """Yield a text after a head that fills `shown` letters; what does not fit is continued below the text's own column.

    Where the head takes more than half of a narrow terminal, the line is left to the printer.
    """
    width = output.width_of(sys.stdout)
    if width is None or shown > width // 2:
        yield head + text
        return
    parts = textwrap.wrap(text.replace("\n", r"\n"), width - shown, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]
    yield head + parts[0]
    for part in parts[1:]:
        yield " " * shown + part


def judged(word: str, width: int = 0) -> str:
    """Return a word that judges in its colour, and as wide as `width` letters."""
    return output.coloured(f"{word:<{width}}", _COLOURS[word])
