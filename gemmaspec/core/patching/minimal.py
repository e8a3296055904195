"""The minimal diff between two versions of a file: each change in its function, with only the context it needs."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import FileEdit, Hunk, Source

_EVERY_SPLIT_UP_TO: Final = 8
"""Up to this many lines of context, every split into above and below is tried; beyond, both sides grow equally."""


@dataclass(frozen=True, kw_only=True)
class FileDiff:
    """One file's edit as the launcher reads it, and as the text of a unified diff."""

    edit: FileEdit
    text: str

    @property
    def scopes(self) -> tuple[str, ...]:
        """The function or class of each hunk, in order."""
        return tuple(hunk.scope for hunk in self.edit.hunks)


@dataclass(frozen=True)
class _Change:
    """Half-open ranges of line indices, in the old and in the new file; `adds`: some new line is code."""

    old: tuple[int, int]
    new: tuple[int, int]
    adds: bool

    def joined(self, other: _Change) -> _Change:
        """Return a change that covers both and everything between them."""
        return _Change((self.old[0], other.old[1]), (self.new[0], other.new[1]), self.adds or other.adds)

    def holds(self, other: _Change) -> bool:
        """Return whether the other lies within; if the old lines only touch, the new ones decide."""
        sides = (self.old, other.old), (self.new, other.new)
        return all(mine[0] <= its[0] and its[1] <= mine[1] for mine, its in sides)

    def grown(self, above: int, below: int) -> _Change:
        """Return the change with context, which is the same in both files."""
        old, new = ((begin - above, end + below) for begin, end in (self.old, self.new))
        return _Change(old, new, self.adds)


def minimal_diff(path: str, old: bytes, new: bytes) -> FileDiff:
    """Return the hunks that turn `old` into `new`, each as short as possible but unique in its function or class.

    Applied to `old` they give `new`, and the launcher detects them in `new`. Raise PatchError for edits that a patch
    cannot express: no change, lines removed at the edge of the file, changed line endings, invalid Python.
    """
    pair = _Pair(path, old, new)
    changes = pair.changes()
    if not (pair.before.lines and pair.after.lines):
        raise PatchError(f"{path}: the file is empty; a patch edits existing lines and must keep some")
    if not changes:
        raise PatchError(f"{path}: no line was changed" + ("" if old == new else ", only line endings"))
    hunks = pair.hunks(_close_ones_joined(changes))
    edit = FileEdit(path, tuple(hunk for _, hunk in hunks))
    if launcher.decide_file(edit, old).after != new or launcher.decide_file(edit, new).state != "applied":
        raise PatchError(f"{path}: line endings, the encoding or the newline at the end changed; keep them")
    return FileDiff(edit=edit, text=_text(path, pair, [place for place, _ in hunks], changes))


class _Pair:
    """A file before and after."""

    def __init__(self, path: str, old: bytes, new: bytes) -> None:
        try:
            self._path = path
            self.before, self.after = Source(old), Source(new)
            self._scopes = sorted(_scopes(self.before), key=lambda scope: scope[1][1] - scope[1][0])
            self._kept = {scope for scope, _ in _scopes(self.after)}
        except launcher.NOT_PYTHON as error:
            raise PatchError(f"{path}: not valid Python: {error}") from None

    def changes(self) -> list[_Change]:
        """Return the differences, from top to bottom."""
        old, new = self.before.lines, self.after.lines
        head = _same(old, new)
        tail = _same(old[head:][::-1], new[head:][::-1])
        # only the middle is compared, because SequenceMatcher is quadratic in lines that repeat
        old_middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
        matcher = difflib.SequenceMatcher(None, old_middle, new_middle, autojunk=False)
        changes = []
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag != "equal":
                says_something = any(line.strip() for line in new_middle[c:d])
                changes.append(_Change((a + head, b + head), (c + head, d + head), says_something))
        return changes

    def hunks(self, changes: Sequence[_Change]) -> list[tuple[_Change, Hunk]]:
        """Return a hunk for each change; adjacent changes are joined if the lines between them are not unique."""
        groups, hunks = list(changes), list[tuple[_Change, Hunk]]()
        while len(hunks) < len(groups):
            index = len(hunks)
            low = hunks[-1][0].old[1] if hunks else 0
            if index + 1 < len(groups):
                high = groups[index + 1].old[0]
            else:
                high = len(self.before.lines)
            hunk = self._shortest(groups[index], low, high)
            if hunk:
                hunks.append(hunk)
                continue
            if len(groups) == 1:
                raise PatchError(
                    f"{self._path}:{groups[0].old[0] + 1}: this change cannot be detected once applied",
                    hint=f"add a comment where the lines were: {self._path}, line {groups[0].new[0] + 1}",
                )
            if index and not _nearer_below(groups, index):
                left = index - 1
            else:
                left = index
            groups[left : left + 2] = [groups[left].joined(groups[left + 1])]
            hunks = hunks[:left]
        return hunks

    def _shortest(self, change: _Change, low: int, high: int) -> tuple[_Change, Hunk] | None:
        """Return the shortest hunk in the innermost scope in which it is unique, within the lines low to high."""
        for scope, (begin, end) in self._scopes:
            if scope in self._kept and begin <= change.old[0] and change.old[1] <= end:
                room = change.old[0] - max(low, begin), min(high, end) - change.old[1]
                shortest = self._shortest_in(scope, change, room)
                if shortest:
                    return shortest
        return None

    def _shortest_in(self, scope: str, change: _Change, room: tuple[int, int]) -> tuple[_Change, Hunk] | None:
        spans = self.after.spans(scope)
        for above, below in _contexts(*room):
            place = change.grown(above, below)
            if not change.adds and not self._is_seam(change, above, below):
                continue
            (begin, end), (new_begin, new_end) = place.old, place.new
            if begin == end or not any(low <= new_begin and new_end <= high for low, high in spans):
                continue
            old, new = _decoded(self.before, begin, end), _decoded(self.after, new_begin, new_end)
            if not new:
                continue
            hunk = Hunk(_named(scope, begin in self.before.inside), begin + 1, old, new)
            there, done = launcher.find_hunk(hunk, self.before), launcher.find_hunk(hunk, self.after)
            if (there.state, done.state, done.index) == ("applies", "applied", new_begin):
                return place, hunk
        return None

    def _is_seam(self, change: _Change, above: int, below: int) -> bool:
        """Return whether the context has a non-blank line on both sides, which shows that lines were removed."""
        begin, end = change.old
        lines_above = self.before.lines[begin - above : begin]
        lines_below = self.before.lines[end : end + below]
        return any(line.strip() for line in lines_above) and any(line.strip() for line in lines_below)


def _scopes(source: Source) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield every function and class with its lines, then the whole file."""
    yield "", (0, len(source.lines))
    todo = [("", node) for node in launcher.defined_in(source.tree)]
    while todo:
        prefix, node = todo.pop()
        yield prefix + node.name, (launcher.first_line_of(node) - 1, node.end_lineno)
        todo += [(f"{prefix}{node.name}.", child) for child in launcher.defined_in(node)]


def _same(old: Iterable[object], new: Iterable[object]) -> int:
    """Return how many lines at the beginning are the same."""
    pairs = zip(old, new, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _named(scope: str, in_string: bool) -> str:
    """Return the scope as a patch names it: __doc__ for a hunk that begins inside a string."""
    if not in_string:
        return scope
    return f"{scope}.__doc__" if scope else "__doc__"


def _contexts(above: int, below: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of context lines above and below, from none to all, increasing those above first."""
    for size in range(min(above + below, _EVERY_SPLIT_UP_TO) + 1):
        for up in range(min(size, above), -1, -1):
            if size - up <= below:
                yield up, size - up
    size = _EVERY_SPLIT_UP_TO
    while size < above + below:
        size += max(1, size // 4)
        yield min(above, size), min(below, size)


def _nearer_below(groups: Sequence[_Change], index: int) -> bool:
    """Return whether the change below is closer than the one above."""
    if index + 1 == len(groups):
        return False
    here = groups[index].old
    return index == 0 or groups[index + 1].old[0] - here[1] < here[0] - groups[index - 1].old[1]


def _close_ones_joined(changes: Sequence[_Change]) -> list[_Change]:
    """Join changes with only one line between them, because that line would be the context of both."""
    joined = list(changes[:1])
    for change in changes[1:]:
        close = change.old[0] - joined[-1].old[1] <= 1
        if close:
            joined[-1:] = [joined[-1].joined(change)]
        else:
            joined[-1:] = [joined[-1], change]
    return joined


def _decoded(source: Source, begin: int, end: int) -> tuple[str, ...]:
    return tuple(line.decode(source.encoding) for line in source.lines[begin:end])


def _text(path: str, pair: _Pair, places: Sequence[_Change], changes: Sequence[_Change]) -> str:
    """Return a unified diff, its hunks at `places`."""
    lines = [f"--- a/{path}", f"+++ b/{path}"]
    for place in places:
        lines.append(f"@@ -{_range(place.old)} +{_range(place.new)} @@")
        at = place.old[0]
        for change in changes:
            if place.holds(change):
                lines += [f" {line}" for line in _decoded(pair.before, at, change.old[0])]
                lines += [f"-{line}" for line in _decoded(pair.before, *change.old)]
                lines += [f"+{line}" for line in _decoded(pair.after, *change.new)]
                at = change.old[1]
        lines += [f" {line}" for line in _decoded(pair.before, at, place.old[1])]
    return "\n".join(lines) + "\n"


def _range(span: tuple[int, int]) -> str:
    begin, end = span
    if end - begin == 1:
        return f"{begin + 1}"
    return f"{begin + 1},{end - begin}"
