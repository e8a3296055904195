"""Possible new names of a renamed function: functions with similar code."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core import launcher

ALIKE: Final = 0.6
"""Minimum similarity of a proposed function; 1 means identical."""
_RARE: Final = 3
"""A file is parsed if it contains this many of the function's longest names, or all if there are fewer."""


@dataclass(frozen=True, kw_only=True)
class Successor:
    """A function or class that may be the renamed one; `alike` is 1 for the same syntax tree."""

    path: str
    scope: str
    alike: float

    def __str__(self) -> str:
        if self.alike == 1:
            share = "the same code"
        else:
            share = f"{self.alike:.0%} of its code"
        return f"{self.scope} in {self.path} ({share})"


def successors(base: bytes, scope: str, files: Mapping[str, bytes]) -> list[Successor]:
    """Return the most similar functions of some files, best first; the name itself does not count."""
    source = launcher.source_of(base)
    node = launcher.definitions(source.tree, scope)[0]
    wanted, tree = _rows(source, node), _body(node)
    names = sorted({word for row in wanted for word in row if word.isidentifier()}, key=lambda name: (-len(name), name))
    rated = []
    for path, data in files.items():
        if not all(name.encode() in data for name in names[:_RARE]):
            continue
        try:
            there = launcher.source_of(data)
            rated += [_compared(there, path, name, defined, wanted, tree) for name, defined in _definitions(there.tree)]
        except launcher.NOT_PYTHON:
            continue
    good = [successor for successor in rated if successor.alike >= ALIKE]
    return sorted(good, key=lambda successor: (-successor.alike, successor.path, successor.scope))


def _compared(
    source: launcher.Source, path: str, scope: str, node: Any, wanted: Sequence[tuple[str, ...]], tree: str
) -> Successor:
    if _body(node) == tree:
        return Successor(path=path, scope=scope, alike=1)
    matcher = difflib.SequenceMatcher(None, wanted, _rows(source, node), autojunk=False)
    if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE:
        alike = matcher.ratio()
    else:
        alike = 0.0
    return Successor(path=path, scope=scope, alike=min(alike, 0.99))


def _rows(source: launcher.Source, node: Any) -> list[tuple[str, ...]]:
    first = node.body[0].lineno - 1
    return [row for index in range(first, node.end_lineno) if (row := source.words(index))]


def _body(node: Any) -> str:
    """Return the digest of the body of a function or class, without its name."""
    if hasattr(node, "args"):
        arguments = [node.args]
    else:
        arguments = node.bases
    return launcher.tree_digest([*arguments, *(child for child in node.body if not launcher.is_text(child))])


def _definitions(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every function and class with its qualified name."""
    for node in launcher.defined_in(tree):
        yield prefix + node.name, node
        yield from _definitions(node, f"{prefix}{node.name}.")
