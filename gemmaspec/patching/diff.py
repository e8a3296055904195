"""Reading a unified diff strictly.

unidiff parses. In silence it also drops what it cannot read and accepts what git and patch would have to
guess about; everything of that kind is refused here, by file and line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from gemmaspec import launcher
from gemmaspec.errors import PatchError

_NOT_AN_EDIT: Final = {
    r"(rename|copy) (from|to) |(dis)?similarity index ": "renames or copies a file; a patch edits in place",
    r"new file mode |--- /dev/null": "adds a file; a patch edits files that vLLM has",
    r"deleted file mode |\+\+\+ /dev/null": "deletes a file; a patch edits files that vLLM has",
    r"(old|new) mode ": "changes the mode of a file; a patch edits lines",
    r"GIT binary patch|Binary files ": "is binary; a patch edits lines",
    r"\\ ": "is about the newline at the end of the file; a plan cannot say that",
    r"\*\*\* ": "is a context diff; write a unified diff (diff -u, git diff)",
}
_HEADER: Final = re.compile(r"(?:--- a/|\+\+\+ b/)([^\t]+)(?:\t.*)?|diff --git a/(.+) b/\2|index [0-9a-f.]+( \d+)?")
_HUNK_HEADER: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@(?: .*)?")


@dataclass(frozen=True, kw_only=True)
class DiffHunk:
    """The lines before and after, context included; `line` is where the old ones were when it was made."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DiffFile:
    """One edited file, by its path from the folder that holds vllm/, and its hunks from top to bottom."""

    path: str
    hunks: tuple[DiffHunk, ...]


def parse_diff(text: str, name: str) -> tuple[DiffFile, ...]:
    """The edits of a unified diff; PatchError, as name:line: text, for anything but plain edits in vllm/."""
    lines = text.split("\n")
    _refuse_characters(lines, name)
    files = _parse(text, lines, name)
    _refuse_unread(lines, files, name)
    paths = [file.path for file in files]
    if not paths:
        raise PatchError(f"{name}:1: this is no unified diff: no file is edited in it")
    for path in paths:
        if paths.count(path) > 1:
            raise PatchError(f"{name}:{_line_of(lines, path)}: {path} is edited twice; join its hunks")
        _refuse_path(path, lines, name)
    return tuple(DiffFile(path=file.path, hunks=tuple(_hunks(file, name))) for file in files)


def _refuse_characters(lines: list[str], name: str) -> None:
    for number, line in enumerate(lines, 1):
        if "\r" in line or "\0" in line:
            what = "CRLF line endings" if line.endswith("\r") else "a control character"
            raise PatchError(f"{name}:{number}: the diff has {what}", hint=f"sed -i 's/\\r$//' {name}")


def _parse(text: str, lines: list[str], name: str) -> PatchSet:
    """unidiff's reading; it takes lines one by one, so where it stops is where the fault is."""
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
        why = " (are the counts after @@ right?)" if "than expected" in str(error) else ""
        raise PatchError(f"{name}:{read}: {str(error).strip()}{why}") from None


def _refuse_unread(lines: list[str], files: PatchSet, name: str) -> None:
    """Refuse every line that is neither a header nor inside a hunk: other tools skip them in silence."""
    inside = {line.diff_line_no for file in files for hunk in file for line in hunk}
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
            raise PatchError(f"{where}: {named} is not the file whose hunks follow")


def _why_unread(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "diff ")):
        return "a path must be written plainly, as a/vllm/… and b/vllm/…"
    return "this line is in no hunk (a wrong count after @@, or stray text)"


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
    """The last header line that names the path."""
    return max(number for number, line in enumerate(lines, 1) if line.startswith(("+++ ", "diff ")) and path in line)


def _hunks(file: PatchedFile, name: str) -> Iterator[DiffHunk]:
    """The hunks of a file; they must go down it, and both sides must agree on the lines in between."""
    end = shift = 0
    if not file:
        raise PatchError(f"{name}:1: {file.path} has no hunks")
    for hunk in file:
        where = f"{name}:{(hunk[0].diff_line_no or 1) - 1}"
        if hunk.source_start < end:
            raise PatchError(f"{where}: this hunk overlaps the one before it, or comes before it in the file")
        yield _checked_hunk(hunk, where)
        if hunk.target_start != hunk.source_start + shift:
            raise PatchError(f"{where}: by the hunks before, the new side begins at {hunk.source_start + shift}")
        end = hunk.source_start + hunk.source_length
        shift += hunk.target_length - hunk.source_length


def _leaves_a_seam(hunk: Hunk) -> bool:
    """Whether lines that are not blank stand right above and below all that is taken away."""
    lines = [line for line in hunk if line.value.strip() or not line.is_context]
    return any(line.is_removed for line in lines) and lines[0].is_context and lines[-1].is_context


def _checked_hunk(hunk: Hunk, where: str) -> DiffHunk:
    """A hunk that can be found, and recognised once it is in."""
    for line in hunk:
        _refuse_not_an_edit(line.line_type + " ", where)
    old = tuple(line.value.removesuffix("\n") for line in hunk if not line.is_added)
    new = tuple(line.value.removesuffix("\n") for line in hunk if not line.is_removed)
    if not old:
        raise PatchError(f"{where}: the hunk has no old line to be found by; keep one line of context")
    if not any(line.is_added and line.value.strip() for line in hunk) and not _leaves_a_seam(hunk):
        raise PatchError(
            f"{where}: the hunk adds no line; one that takes lines away needs a line of context above and below, by "
            "which it is seen later that it is in"
        )
    return DiffHunk(line=hunk.source_start, old=old, new=new)
