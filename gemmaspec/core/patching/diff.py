"""Read a unified diff strictly.

unidiff parses the text. It also drops unreadable lines silently and accepts text about which git and patch would
have to guess. This module rejects all of that, by file and line.

Reduce a diff from `git diff` or a pull request to its edits of vllm/**/*.py.

Edits of tests, docs and other files are dropped and listed. The rest is read as strictly as a diff of a patch folder.
A path with .., an absolute path or a quoted path anywhere rejects the whole diff.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
            what = "CRLF line endings" if line.endswith("\r") else "a control character"
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
        why = " (are the counts after @@ right?)" if "than expected" in str(error) else ""
        raise PatchError(f"{name}:{read}: {str(error).strip()}{why}") from None


def _refuse_unread(lines: list[str], files: PatchSet, name: str) -> None:
    """Reject every line that is neither a header nor inside a hunk, because other tools skip such lines silently."""
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
    return max(number for number, line in enumerate(lines, 1) if line.startswith(("+++ ", "diff ")) and path in line)


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


_GIT: Final = re.compile(r"diff --git a/(.+) b/(.+)")
_NAMED: Final = re.compile(r"(?:---|\+\+\+|(?:rename|copy) (?:from|to)) (?:[ab]/)?([^\t]+)")
_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@ ?(.*)")
_DEFINED: Final = re.compile(r"[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w+)")


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """The remaining edits with a guess at the function or class of each hunk ("" if unknown), and the dropped paths."""

    text: str
    files: tuple[DiffFile, ...]
    scopes: tuple[tuple[str, ...], ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class _Section:
    """The lines of one file: `begin` is the number of the first line; `paths` are all paths in its headers."""

    begin: int
    lines: list[str]
    paths: tuple[str, ...]
    headings: list[str]


def reduce_diff(text: str, name: str) -> Incoming:
    """Keep the edits of vllm/**/*.py.

    Raise PatchError, as name:line: text, for text that is not a diff, a hostile path, an edit that a patch cannot make
    (a new file, a rename, a mode, binary), a file that is edited twice, and a diff without any edit of vllm/.
    """
    kept: list[tuple[_Section, DiffFile]] = []
    dropped: list[str] = []
    for section in _sections(text, name):
        for path in section.paths:
            _refuse_hostile(path, f"{name}:{section.begin}")
        if any(path.startswith("vllm/") and path.endswith(".py") for path in section.paths):
            kept.append((section, _strictly(section, name)))
        else:
            dropped.append(section.paths[-1])
    paths = [file.path for _, file in kept]
    for path in paths:
        if paths.count(path) > 1:
            raise PatchError(f"{name}: the diff edits {path} twice; use one diff, not a series of commits")
    if not kept:
        raise PatchError(f"{name}: the diff edits no .py file in vllm/, only {', '.join(dropped)}")
    return Incoming(
        text="".join(line + "\n" for section, _ in kept for line in section.lines),
        files=tuple(file for _, file in kept),
        scopes=tuple(
            tuple(_guess(hunk, heading) for hunk, heading in zip(file.hunks, section.headings, strict=True))
            for section, file in kept
        ),
        dropped=tuple(dropped),
    )


def _strictly(section: _Section, name: str) -> DiffFile:
    """Return the edit of one section; the line number in an error is that of the whole diff."""
    try:
        (file,) = parse_diff("\n".join(section.lines) + "\n", "section")
    except PatchError as error:
        where = re.match(r"section:(\d+)", error.message)
        line = section.begin + int(where[1]) - 1 if where else section.begin
        raise PatchError(f"{name}:{line}{error.message[where.end() if where else 0 :]}", hint=error.hint) from None
    return file


def _refuse_hostile(path: str, where: str) -> None:
    parts = path.split("/")
    if path == "/dev/null":
        return
    if path.startswith(("/", '"')) or ".." in parts or "\\" in path or not path.isprintable():
        raise PatchError(f"{where}: the diff contains the path {path!r}, which leaves the folder or is quoted")


def _sections(text: str, name: str) -> Iterator[_Section]:
    """Yield the sections, one per file. Lines inside hunks are counted, so that none is mistaken for a header."""
    lines = text.removesuffix("\n").split("\n")
    if lines[0].endswith("\r"):
        raise PatchError(f"{name}:1: the diff has CRLF line endings")
    current: _Section | None = None
    index = 0
    while index < len(lines):
        line = lines[index]
        if _begins(line, current):
            if current:
                yield _named(current, name)
            current = _Section(index + 1, [], (), [])
        if current is None:
            hint = "use the pull request's address with .diff at the end" if line.startswith("From ") else None
            raise PatchError(f"{name}:{index + 1}: not the beginning of a diff: {line[:80]!r}", hint=hint)
        size = _hunk_size(lines, index, name)
        if size:
            heading = _HUNK.fullmatch(line)
            current.headings.append(heading[3] if heading else "")
        current.lines.extend(lines[index : index + size + 1])
        index += size + 1
    if current is None:
        raise PatchError(f"{name}:1: not a unified diff: it is empty")
    yield _named(current, name)


def _begins(line: str, current: _Section | None) -> bool:
    """Return whether a header line is the first of another file."""
    if line.startswith("diff "):
        return True
    started = current is not None and any(line.startswith("--- ") for line in current.lines)
    return line.startswith("--- ") and (current is None or started)


def _hunk_size(lines: Sequence[str], index: int, name: str) -> int:
    """Return how many lines after this one belong to its hunk; 0 if it is not the header of a hunk."""
    sizes = _HUNK.fullmatch(lines[index])
    if not sizes:
        return 0
    old, new = (int(count) if count is not None else 1 for count in sizes.groups()[:2])
    at = index
    while (old > 0 or new > 0) and at + 1 < len(lines) and lines[at + 1][:1] in (" ", "-", "+", "\\", ""):
        at += 1
        old -= lines[at][:1] in (" ", "-", "")
        new -= lines[at][:1] in (" ", "+", "")
    if old or new:
        raise PatchError(f"{name}:{index + 1}: the number of lines in the hunk differs from its header")
    return at - index


def _named(section: _Section, name: str) -> _Section:
    """Return the section with the paths that its headers name."""
    head = section.lines
    first_hunk = next((n for n, line in enumerate(head) if line.startswith("@@ ")), len(head))
    paths: list[str] = []
    for line in head[:first_hunk]:
        git, named = _GIT.fullmatch(line), _NAMED.match(line)
        paths += [git[1], git[2]] if git else [named[1]] if named else []
        if line.startswith("diff --git ") and not git:
            raise PatchError(f"{name}:{section.begin}: the path is quoted or unusual: {line[:200]!r}")
    paths = [path for path in dict.fromkeys(paths) if path != "/dev/null"]
    if not paths:
        raise PatchError(f"{name}:{section.begin}: the header names no file: {head[0][:80]!r}")
    return _Section(section.begin, section.lines, tuple(paths), section.headings)


def _guess(hunk: DiffHunk, heading: str) -> str:
    """Return the innermost scope, by indentation, that contains all lines of a hunk; "" if it cannot be seen."""
    scopes = [scope for side in (hunk.old, hunk.new) for scope in _scopes((heading, *side))]
    shared = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*scopes, strict=False))
    return ".".join(names[0] for names in shared)


def _scopes(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the qualified name around each line except the first, which is the heading; blank lines have none."""
    stack: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if line.lstrip()[0] not in ")]}":  # these close the head of a definition, not its body
            stack = [opened for opened in stack if opened[0] < indent]
        defined = _DEFINED.match(line)
        if defined:
            stack.append((indent, defined[1]))
        if number:
            yield tuple(name for _, name in stack) if stack and stack[0][0] == 0 else ()
