"""The table of `patch verify`: patches by trees. Each state has a letter, so that nothing depends on colour."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.carry.patchset import PatchOnTree
from gemmaspec.cli import output
from gemmaspec.core.patching.decide import PatchVerdict
from gemmaspec.run.trees.tree import TreeSource

LETTERS: Final = {
    "applies": ("a", 32, "applies"),
    "drifted": ("d", 33, "drifted: applies, but to a function that no known release has"),
    "applied": ("p", 32, "already applied"),
    "superseded": ("s", 36, "superseded: this vLLM has fixed the bug"),
    "not-needed": ("n", 2, "not needed"),
    "left-out": ("o", 33, "left out: for speed, and the server runs without it"),
    "conflict": ("C", 31, "conflict"),
    "ambiguous": ("T", 31, "ambiguous: its lines occur several times"),
    "missing": ("M", 31, "missing: the file does not exist"),
    "invalid": ("I", 31, "invalid: the patch itself is invalid"),
}
"""State → its letter, colour and words. Lowercase letters fit; capitals do not."""
_BOLD: Final = 1


@dataclass(frozen=True)
class MatrixColumn:
    """One tree, with the two lines of its heading."""

    place: TreeSource
    top: str
    bottom: str

    @property
    def width(self) -> int:
        """Characters."""
        return max(len(self.top), len(self.bottom))


def lines(cells: Sequence[PatchOnTree], *, width: int | None) -> Iterator[str]:
    """Yield the table in blocks that fit the width, None for no limit; then legend, numbered trees, and misfits."""
    if not cells:
        return
    patches = sorted({cell.verdict.patch for cell in cells})
    columns = list(_columns(cells))
    states = {(cell.verdict.patch, cell.place): cell for cell in cells}
    shared = _shared_major(cells)
    margin = max(len(patch) for patch in patches) + 2
    for block in _blocks(columns, width and width - margin):
        yield f"vllm {shared}".ljust(margin) + " ".join(col.top.ljust(col.width) for col in block).rstrip()
        if any(col.bottom for col in block):
            yield " " * margin + " ".join(col.bottom.ljust(col.width) for col in block).rstrip()
        for patch in patches:
            yield _row(patch, [states.get((patch, column.place)) for column in block], block, margin)
        yield ""
    yield from _legend(cells)
    for column in columns:
        if column.place.kind != "release":
            vllm = next(cell.vllm for cell in cells if cell.place == column.place)
            yield f"{column.top} {column.place}: vllm {vllm}"
    yield from drifts(cells)
    yield from misfits(cells)


def _columns(cells: Sequence[PatchOnTree]) -> Iterator[MatrixColumn]:
    """Yield the columns: a release is headed by its version on two lines, another tree by a number in brackets."""
    number = 0
    for place in dict.fromkeys(cell.place for cell in cells):
        if place.kind == "release":
            major, _, rest = place.ref.partition(".")
            minor, _, patch = rest.partition(".")
            yield MatrixColumn(
                place, minor if _shared_major(cells) else f"{major}.{minor}", f".{patch}" if patch else ""
            )
        else:
            number += 1
            yield MatrixColumn(place, f"[{number}]", "")


def _shared_major(cells: Sequence[PatchOnTree]) -> str:
    """Return the "0." that all releases of the table begin with; "" if they differ."""
    majors = {cell.place.ref.partition(".")[0] for cell in cells if cell.place.kind == "release"}
    if len(majors) == 1:
        return f"{majors.pop()}."
    return ""


def _blocks(columns: Sequence[MatrixColumn], width: int | None) -> Iterator[list[MatrixColumn]]:
    block: list[MatrixColumn] = []
    for column in columns:
        taken = sum(placed.width + 1 for placed in block)
        if width is not None and block and taken + column.width + 1 > width:
            yield block
            block = []
        block.append(column)
    yield block


def _row(patch: str, cells: Sequence[PatchOnTree | None], columns: Sequence[MatrixColumn], margin: int) -> str:
    row = patch.ljust(margin)
    for cell, column in zip(cells, columns, strict=True):
        mark = " "
        if cell:
            letter, colour, _ = LETTERS[cell.verdict.state]
            mark = output.coloured(letter, colour)
        row += mark + " " * column.width
    return row.rstrip()


def _legend(cells: Sequence[PatchOnTree]) -> Iterator[str]:
    """Yield the letters that are in the table, one per line."""
    for state, (letter, colour, words) in LETTERS.items():
        if any(cell.verdict.state == state for cell in cells):
            yield f"{output.coloured(letter, colour)} {words}"


_SAME: Final = re.compile(r"this is (\S+)'s file in an? .* tree")


def drifts(cells: Sequence[PatchOnTree]) -> Iterator[str]:
    """Yield, for each patch that fits an unknown build, which release's file or function that build has."""
    same: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        verdict = cell.verdict
        if release := _release_of(verdict):
            same.setdefault((str(cell.place), release), []).append(verdict.patch)
            continue
        details = [f"{file.path}:{file.line or 1}: {file.detail}" for file in verdict.files if file.detail]
        if verdict.state == "drifted" or (
            cell.place.kind != "release" and verdict.state in ("applies", "applied") and details
        ):
            yield _title(cell)
            yield from (f"  {detail}" for detail in details)
        elif verdict.state == "superseded" and verdict.detail:
            yield _title(cell)
            yield f"  {verdict.detail}"
    for (place, release), patches in same.items():
        yield f"{place} has the files of {release} for {', '.join(patches)}"


def _release_of(verdict: PatchVerdict) -> str:
    """Return the release whose files a build has, if that is all there is to say of them; else ""."""
    found = [_SAME.fullmatch(file.detail) for file in verdict.files]
    if verdict.state not in ("applies", "applied") or not all(found):
        return ""
    releases = {one[1] for one in found if one}
    if len(releases) == 1:
        return releases.pop()
    return ""


def misfits(cells: Sequence[PatchOnTree]) -> Iterator[str]:
    """Yield, for each patch that does not fit a tree, the file, the line, the expected and the found text."""
    for cell in cells:
        verdict = cell.verdict
        if verdict.fits:
            continue
        yield ""
        yield f"{_title(cell)} ({'required' if cell.required else 'optional'})"
        for file in verdict.files:
            if file.state in ("applies", "applied"):
                continue
            yield f"  {file.path}{f':{file.line}' if file.line else ''}: {file.detail}"
            yield from (f"    expected | {line}" for line in file.expected)
            yield from (f"       found | {line}" for line in file.found)
        if verdict.detail:
            yield f"  {verdict.detail}"
        if verdict.state in ("conflict", "missing") and cell.place.kind in ("release", "tree"):
            yield f"  next: gemmaspec patch rebase {verdict.patch} --{cell.place.kind} {shlex.quote(cell.place.ref)}"


def _title(cell: PatchOnTree) -> str:
    return output.coloured(f"{cell.verdict.patch} on {cell.place}: {cell.verdict.state}", _BOLD)
