"""Reduce a diff from `git diff` or a pull request to its edits of vllm/**/*.py.

Edits of tests, docs and other files are dropped and listed. The rest is read as strictly as a diff of a patch folder.
A path with .., an absolute path or a quoted path anywhere rejects the whole diff.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.diff import DiffFile, DiffHunk, parse_diff

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
    lines: list[str] = []
    scopes = []
    for section, file in kept:
        lines += section.lines
        hunks = zip(file.hunks, section.headings, strict=True)
        scopes.append(tuple(_guess(hunk, heading) for hunk, heading in hunks))
    return Incoming(
        text="".join(f"{line}\n" for line in lines),
        files=tuple(file for _, file in kept),
        scopes=tuple(scopes),
        dropped=tuple(dropped),
    )


def _strictly(section: _Section, name: str) -> DiffFile:
    """Return the edit of one section; the line number in an error is that of the whole diff."""
    try:
        (file,) = parse_diff("\n".join(section.lines) + "\n", "section")
    except PatchError as error:
        where = re.match(r"section:(\d+)", error.message)
        if where:
            line = section.begin + int(where[1]) - 1
        else:
            line = section.begin
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
            if line.startswith("From "):
                hint = "use the pull request's address with .diff at the end"
            else:
                hint = None
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
    old, new = map(int, sizes.groups(default="1")[:2])
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
    paths: list[str] = []
    for line in itertools.takewhile(lambda line: not line.startswith("@@ "), head):
        git, named = _GIT.fullmatch(line), _NAMED.match(line)
        if git:
            paths += [git[1], git[2]]
        elif named:
            paths.append(named[1])
        if line.startswith("diff --git ") and not git:
            raise PatchError(f"{name}:{section.begin}: the path is quoted or unusual: {line[:200]!r}")
    paths = [path for path in dict.fromkeys(paths) if path != "/dev/null"]
    if not paths:
        raise PatchError(f"{name}:{section.begin}: the header names no file: {head[0][:80]!r}")
    return _Section(section.begin, section.lines, tuple(paths), section.headings)


def _guess(hunk: DiffHunk, heading: str) -> str:
    """Return the innermost scope, by indentation, that contains all lines of a hunk; "" if it cannot be seen."""
    scopes = [*_scopes((heading, *hunk.old)), *_scopes((heading, *hunk.new))]
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
