"""Where vLLM raises an error: its texts by file and release, read from its sources by tools/raises.py. Pure."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("raises.tsv")
"""A row each: exception, text, file, function, condition, releases."""
HOLE: Final = "{}"
"""Stands in a text where a value goes in."""
_PREFIX: Final = re.compile(r"^(?:[A-Za-z_]\w{0,80}\.){0,8}(?P<name>[A-Za-z_]\w{0,80}): ")
_LONGEST: Final = 4000
"""Characters of a message to look at."""


@dataclass(frozen=True, kw_only=True)
class RaisedAt:
    """A place in vLLM that raises a text."""

    exception: str
    text: str
    """With {} where values go in."""
    file: str
    """Below vllm/."""
    function: str
    condition: str
    """Of the innermost `if` or `assert`, in the newest release that has it; '' for none."""
    releases: str
    """Spans of releases, such as 0.26.0-0.28.0, 0.30.0."""


def where_raised(message: str) -> tuple[RaisedAt, ...]:
    """Return the places that raise a message, those whose text says most alone; () for none."""
    text = " ".join(message[:_LONGEST].split())
    named = _PREFIX.match(text)
    fitting = [place for place in _places() if _fits(place.text, text)]
    if named:
        fitting = [place for place in fitting if place.exception == named["name"]] or fitting
    if not fitting:
        return ()
    most = max(_said(place) for place in fitting)
    return tuple(place for place in fitting if _said(place) == most)


def _said(place: RaisedAt) -> int:
    return len(place.text.replace(HOLE, ""))


def _fits(template: str, message: str) -> bool:
    """Return whether the parts of a text stand in a message in their order."""
    at = 0
    for part in template.split(HOLE):
        found = message.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


@functools.cache
def _places() -> tuple[RaisedAt, ...]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(_place(line.split("\t")) for line in lines)


def _place(cells: list[str]) -> RaisedAt:
    exception, text, file, function, condition, releases = cells
    return RaisedAt(
        exception=exception,
        text=text,
        file=file,
        function=function,
        condition=condition,
        releases=releases,
    )
