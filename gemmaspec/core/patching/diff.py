"""Read a unified diff strictly.

unidiff parses the text. It also drops unreadable lines silently and accepts text about which git and patch would
have to guess. This module rejects all of that, by file and line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError

_NOT_AN_EDIT: Final = {
    r"(rename|copy) (from|to) |(dis)?similarity index ": "renames or copies a file, but a patch edits in place",
    r"new file mode |--- /dev/null": "adds a file, but a patch can only edit files of vLLM",
    r"deleted file mode |\+\+\+ /dev/null": "deletes a file, but a patch can only edit files of vLLM",
    r"(old|new) mode ": "changes the mode of a file, but a patch can only edit lines",
    r"GIT binary patch|Binary files ": "is binary, but a patch can only edit lines",
    r"\\ ": "changes the newline at the end of a file, which a plan cannot express",
    r"\*\*\* ": "is a context diff; make a unified diff (diff -u, git diff)",
}
_HEADER: Final = re.compile(r"(?:--- a/|\+\+\+ b/)([^\t]+)(?:\t.*)?|diff --git a/(.+) b/\2|index [0-9a-f.]+( \d+)?")
_HUNK_HEADER: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@(?: .*)?")


@dataclass(frozen=True, kw_only=True)
class DiffHunk:
    """The lines before and after, including context; `line` is the line of the old ones in the original file."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DiffFile:
    """One edited file, by its path from the folder that holds vllm/, and its hunks from top to bottom."""

    path: str
    hunks: tuple[DiffHunk, ...]


def parse_diff(text: str, name: str) -> tuple[DiffFile, ...]:
    """Return the edits of a unified diff. Raise PatchError, as name:line: text, for anything but edits in vllm/."""
    lines = text.split("\n")
    _refuse_characters(lines, name)
    files = _parse(text, lines, name)
    _refuse_unread(lines, files, name)
    paths = [file.path for file in files]
    if not paths:
        raise PatchError(f"{name}:1: not a unified diff: it edits no file")
    for path in paths:
        if paths.count(path) > 1:
            raise PatchError(f"{name}:{_line_of(lines, path)}: the diff edits {path} twice; join its hunks")
        _refuse_path(path, lines, name)
    return tuple(DiffFile(path=file.path, hunks=tuple(_hunks(file, name))) for file in files)


def _refuse_characters(lines: list[str], name: str) -> None:
    for number, line in enumerate(lines, 1):
        if "\r" in line or "\0" in line:
            if line.endswith("\r"):
                what = "CRLF line endings"
            else:
                what = "a control character"
            raise PatchError(f"{name}:{number}: the diff contains {what}", hint=f"sed -i 's/\\r$//' {name}")


def _parse(text: str, lines: list[str], name: str) -> PatchSet:
    """Return what unidiff parses. It reads line by line, so an error is in the line where it stops."""
    read = 0

    def counted() -> Iterator[str]:
        nonlocal read
        for line in io.StringIO(text, newline="\n"):
            read += 1
            yield line

    try:
        return PatchSet(counted())
    except UnidiffParseError as error:
        for number, line in enumerate(lines[:read], 1):
            _refuse_not_an_edit(line, f"{name}:{number}")
        if "than expected" in str(error):
            why = " (are the counts after @@ right?)"
        else:
            why = ""
        raise PatchError(f"{name}:{read}: {str(error).strip()}{why}") from None


def _refuse_unread(lines: list[str], files: PatchSet, name: str) -> None:
    """Reject every line that is neither a header nor inside a hunk, because other tools skip such lines silently."""
    inside = set()
    for hunk in chain.from_iterable(files):
        inside |= {line.diff_line_no for line in hunk}
    text = lines if lines[-1] else lines[:-1]
    outside = {f"{name}:{number}": line for number, line in enumerate(text, 1) if number not in inside}
    for where, line in outside.items():
        _refuse_not_an_edit(line, where)
    for where, line in outside.items():
        if not _HEADER.fullmatch(line) and not _HUNK_HEADER.fullmatch(line):
            raise PatchError(f"{where}: {_why_unread(line)}: {line!r}")
    paths = {file.path for file in files}
    for where, line in outside.items():
        header = _HEADER.fullmatch(line)
        named = header and (header[1] or header[2])
        if named and named not in paths:
            raise PatchError(f"{where}: the header names {named}, but the hunks that follow are for another file")


def _why_unread(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "diff ")):
        return "a path must have the form a/vllm/… or b/vllm/…, without quotes"
    return "this line is outside all hunks (a wrong count after @@, or stray text)"


def _refuse_not_an_edit(line: str, where: str) -> None:
    for pattern, why in _NOT_AN_EDIT.items():
        if re.match(pattern, line):
            raise PatchError(f"{where}: the diff {why}")


def _refuse_path(path: str, lines: list[str], name: str) -> None:
    try:
        launcher.check_path(path)
    except ValueError as error:
        raise PatchError(f"{name}:{_line_of(lines, path)}: {error}") from None


def _line_of(lines: list[str], path: str) -> int:
    """Return the last header line that names the path."""
    headers = [number for number, line in enumerate(lines, 1) if line.startswith(("+++ ", "diff "))]
    return max(number for number in headers if path in lines[number - 1])


def _hunks(file: PatchedFile, name: str) -> Iterator[DiffHunk]:
    """Yield the hunks of a file. They must be in order, and both sides must agree on the lines between them."""
    end = shift = 0
    if not file:
        raise PatchError(f"{name}:1: {file.path} has no hunks")
    for hunk in file:
        where = f"{name}:{(hunk[0].diff_line_no or 1) - 1}"
        if hunk.source_start < end:
            raise PatchError(f"{where}: this hunk overlaps the previous one or belongs before it")
        yield _checked_hunk(hunk, where)
        if hunk.target_start != hunk.source_start + shift:
            raise PatchError(
                f"{where}: after the previous hunks, the new side must begin at line {hunk.source_start + shift}"
            )
        end = hunk.source_start + hunk.source_length
        shift += hunk.target_length - hunk.source_length


def _refuse_undetectable(hunk: Hunk, where: str) -> None:
    """Raise PatchError for a hunk that adds no code, unless it keeps non-blank lines directly above and below.

    The launcher recognizes an applied hunk by its new lines. Those of a hunk that only removes lines, or adds blank
    ones, also occur in the unpatched file, unless they show what is now adjacent.
    """
    if any(line.is_added and line.value.strip() for line in hunk):
        return
    lines = [line for line in hunk if line.value.strip() or not line.is_context]
    if all(line.is_context for line in lines):
        raise PatchError(f"{where}: the hunk changes no line")
    sides = {"above": lines[0], "below": lines[-1]}
    missing = " and ".join(side for side, line in sides.items() if not line.is_context)
    if missing:
        raise PatchError(
            f"{where}: the hunk adds no code and keeps no line {missing} the change, so the launcher could not detect "
            "it once applied",
            hint="add that line as context; at the beginning or end of a file, replace the lines by a comment",
        )


def _checked_hunk(hunk: Hunk, where: str) -> DiffHunk:
    """Return the hunk if the launcher can locate it, and detect it once it is applied; else raise PatchError."""
    for line in hunk:
        _refuse_not_an_edit(line.line_type + " ", where)
    old = tuple(line.value.removesuffix("\n") for line in hunk if not line.is_added)
    new = tuple(line.value.removesuffix("\n") for line in hunk if not line.is_removed)
    if not old:
        raise PatchError(f"{where}: the hunk has no old lines, so it cannot be located; add a line of context")
    _refuse_undetectable(hunk, where)
    return DiffHunk(line=hunk.source_start, old=old, new=new)
