"""The context of a hunk in a release, as known.json stores it: digests of lines and of functions."""

from __future__ import annotations

import ast
from typing import Final

from gemmaspec.core import launcher
from gemmaspec.core.launcher import EDGE_MARK, Hunk, Source, Surroundings

_AT_LEAST: Final = 3
"""Lines of code on either side of a hunk whose scope is the whole file; as many as git and patch use."""
_AT_MOST: Final = 40


def place_of(hunk: Hunk, source: Source, index: int, after: Source) -> Surroundings:
    """Return the place of a hunk at a line index of a released file; `after` is that file, patched.

    In a function every line of code is kept, so that drift can be reported line by line; in a whole file only as many
    as identify the place.
    """
    spans = source.spans(hunk.function)
    above = _row(source, spans, index, -1)
    below = _row(source, spans, index + len(hunk.old), 1)
    again = (
        launcher.similarity(source, spans, index, -1, above)[1],
        launcher.similarity(source, spans, index + len(hunk.old), 1, below)[1],
    )
    inside = ""
    if hunk.function:
        inside = launcher.enclosing(source, spans, index)
    else:
        # one line more than the most similar place has in common with this one
        above = above[: min(max(_AT_LEAST, again[0] + 1), _AT_MOST)]
        below = below[: min(max(_AT_LEAST, again[1] + 1), _AT_MOST)]
    return Surroundings(
        above="".join(above),
        below="".join(below),
        again=again,
        function=launcher.function_digest(source, hunk),
        patched=launcher.function_digest(after, hunk),
        inside=inside,
        head=_is_head(hunk, source, index),
    )


def _is_head(hunk: Hunk, source: Source, index: int) -> bool:
    """Return whether no code of the hunk's function is above it."""
    if hunk.function:
        nodes = launcher.definitions(source.tree, hunk.function)
    else:
        nodes = []
    if len(nodes) != 1 or isinstance(nodes[0], ast.ClassDef):
        return False
    body = [node for node in nodes[0].body if not launcher.is_text(node)]
    return bool(body) and bool(body[0].lineno == index + 1)


def _row(source: Source, spans: list[tuple[int, int]], edge: int, step: int) -> list[str]:
    """Return the marks of all lines of code from a line index to the edge of the scope, the nearest first."""
    begin, end = next(span for span in spans if span[0] <= edge <= span[1])
    if step < 0:
        found = source.marks(begin, edge)[::-1]
    else:
        found = source.marks(edge, end)
    return [*(mark for _, mark in found), EDGE_MARK]
