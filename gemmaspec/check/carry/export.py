"""`patch export`: write a patch as an ordinary diff for one vLLM, with three lines of context."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.check.carry.patchset import load_set
from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchConflict
from gemmaspec.run.trees import listing
from gemmaspec.run.trees.reader import open_reader


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The diff (bytes, because vLLM's files need not be UTF-8), its vLLM, and the decision."""

    patch: str
    vllm: str
    state: str
    diff: bytes


def export(
    id_: str, *, release: str | None = None, tree: Path | None = None, folders: tuple[Path, ...] = ()
) -> Exported:
    """Return a diff for `git apply` and `patch -p1 -F0`, for the files of one release or folder.

    A patch that needs others is exported on top of them. Raise PatchConflict, with the reason, if it does not apply;
    UsageError and EnvironmentMissing for a missing or unreadable vLLM.
    """
    patches = load_set((id_,), folders)
    for error in patches.refused.values():
        raise error
    judge = patches.judges[id_]
    reader = open_reader(release, tree, functools.cache(listing.published))
    files = reader.files(judge.needed_paths(reader.vllm))
    plan = launcher.Plan(1, "", "", (), judge.patches, "")
    result = launcher.decide_plan(plan, reader.vllm, files.__getitem__)[0][-1]
    if result.state not in ("applies", "drifted"):
        reason = f"cannot export {id_}: its state on {reader.place} is {result.state}"
        detailed = [file for file in result.files if file.detail]
        if detailed:
            reason += ": " + "; ".join(f"{file.path}:{file.line or 1}: {file.detail}" for file in detailed)
        raise PatchConflict(reason, hint=f"gemmaspec patch verify {id_}")
    diff = b""
    for file in result.files:
        diff += _diff(file.path, file.before or b"", file.after or b"")
    return Exported(patch=id_, vllm=reader.vllm, state=result.state, diff=diff)


def _diff(path: str, before: bytes, after: bytes) -> bytes:
    """Return a unified diff as git writes it, with lines that end only at a newline."""
    old, new = before.split(b"\n"), after.split(b"\n")
    names = (f"a/{path}".encode(), f"b/{path}".encode())
    lines = difflib.diff_bytes(difflib.unified_diff, _ended(old), _ended(new), *names, n=3, lineterm=b"\n")
    return b"".join(_complete(lines))


def _ended(lines: list[bytes]) -> list[bytes]:
    """Return the lines with their newlines; the last one has none if the file does not end in one."""
    ended = [line + b"\n" for line in lines[:-1]]
    if lines[-1] == b"":
        return ended
    return [*ended, lines[-1]]


def _complete(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a diff, with the note for a file without a final newline."""
    for line in lines:
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
