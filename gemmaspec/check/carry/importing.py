"""`patch import`: a pull request or file as an unreviewed patch."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.check.carry import rebase_state
from gemmaspec.check.carry.newpatch import NewPatch, folder_for, refuse_existing, write_patch
from gemmaspec.check.carry.newvariant import diffs_of, release_number
from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchConflict, PatchError, UsageError
from gemmaspec.core.patching.diff import DiffFile
from gemmaspec.core.patching.incoming import Incoming, reduce_diff
from gemmaspec.core.patching.patch import Imported, Patch
from gemmaspec.run.index.address import LARGEST, fetch
from gemmaspec.run.trees import listing
from gemmaspec.run.trees.reader import Reader, open_reader

FIRST_RELEASE: Final = "0.19.0"
"""The first vLLM release with Gemma 4; the range of an import that was tested on no release begins here."""
_PULL: Final = re.compile(r"(https?://github\.com/[^/]+/[^/]+/pull/(\d+))(?:\.diff|\.patch|/files|/changes)?/?")


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """An address or a file; the other fields have defaults. `date` is recorded as given, without a clock."""

    source: str
    id: str | None = None
    release: str | None = None
    tree: Path | None = None
    folder: Path | None = None
    date: str | None = None


@dataclass(frozen=True, kw_only=True)
class Import:
    """The patch, the files that were dropped from the diff, and the vLLM on which it was tested ("" for none)."""

    patch: Patch
    dropped: Sequence[str]
    tried: str


def import_diff(request: ImportRequest) -> Import:
    """Make an unreviewed patch from a diff; the same bytes give the same patch.

    Raise PatchError for an invalid diff, PatchConflict if it does not fit the named vLLM, UsageError for an invalid or
    existing id, EnvironmentMissing for unreadable input.
    """
    id_, folder = request.id or _id_of(request.source), folder_for(request.folder)
    rebase_state.check_id(id_)
    refuse_existing(id_, folder)
    if request.date and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", request.date):
        raise UsageError(f"--date {request.date!r} must be like 2026-11-20")
    if "://" in request.source:
        data = fetch(_diff_address(request.source))
        name = request.source
    else:
        data = _read(Path(request.source))
        name = Path(request.source).name
    try:
        incoming = reduce_diff(data.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        raise PatchError(f"{name}: not a diff of Python files: invalid UTF-8 at byte {error.start}") from None
    paths = [file.path for file in incoming.files]
    origin = Imported(source=name, sha256=launcher.sha256(data), date=request.date)
    new = NewPatch(
        id=id_,
        diff=incoming.text,
        floor=FIRST_RELEASE,
        scopes=dict(zip(paths, incoming.scopes, strict=True)),
        origin=origin,
    )
    tried = ""
    if request.release or request.tree:
        reader = open_reader(request.release, request.tree, functools.cache(listing.published))
        new, tried = _fitted(new, incoming, reader), str(reader.place)
    return Import(patch=write_patch(new, folder), dropped=incoming.dropped, tried=tried)


def _id_of(source: str) -> str:
    """Return pr-41752 for a pull request on GitHub, else the last part of the name."""
    pull = _PULL.fullmatch(source)
    if pull:
        return f"pr-{pull[2]}"
    stem = re.split(r"[/?#]", source.rstrip("/"))[-1].removesuffix(".diff").removesuffix(".patch")
    id_ = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not id_:
        raise UsageError(f"{source}: cannot make an id from this name", hint="--id what-the-patch-does")
    return id_


def _diff_address(source: str) -> str:
    """Return the address of a GitHub pull request's diff, given any of its pages; other addresses stay unchanged."""
    pull = _PULL.fullmatch(source)
    if pull:
        return f"{pull[1]}.diff"
    return source


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise UsageError(f"the file {file} does not exist")
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UsageError(f"{file} is too large for a patch: more than {LARGEST} bytes")
    return data


def _fitted(new: NewPatch, incoming: Incoming, reader: Reader) -> NewPatch:
    """Return the patch with minimal diffs of the same effect on that vLLM, from its release on."""
    files = reader.files(file.path for file in incoming.files)
    pairs = {}
    for file, scopes in zip(incoming.files, incoming.scopes, strict=True):
        edit = _edit(file, scopes, files[file.path])
        decision = _decided(edit, files[edit.path])
        if decision.before is None or decision.after is None or decision.state != "applies":
            what = f"{new.id} does not apply to {reader.place}"
            if decision.state == "applied":
                what = f"{reader.place} already has it"
            where = f"{decision.path}:{decision.line or 1}: {decision.state}: {decision.detail}"
            raise PatchConflict(f"{what}: {where}", hint="name another release, or none to import the diff unchanged")
        pairs[edit.path] = decision.before, decision.after
    diffs = diffs_of(pairs)
    text = "".join(diff.text for diff in diffs)
    scopes_of = {diff.edit.path: diff.scopes for diff in diffs}
    return NewPatch(
        id=new.id,
        diff=text,
        floor=release_number(reader.vllm),
        scopes=scopes_of,
        origin=new.origin,
        vllm=reader.vllm,
        files=pairs,
    )


def _decided(edit: launcher.FileEdit, data: bytes | None) -> launcher.FileResult:
    """Return the decision on a file by content, or else by line numbers if the diff was made from this very file.

    Three lines of context occur more than once in some files of vLLM. If the old lines of every hunk begin exactly at
    the line that its header states, the diff says which of them it means.
    """
    decision = launcher.decide_file(edit, data)
    if data is None or decision.state not in ("ambiguous", "conflict"):
        return decision
    try:
        source = launcher.Source(data)
        if not all(source.has(hunk.old, hunk.line - 1) for hunk in edit.hunks):
            return decision
        return launcher.decide_places(edit, source, [launcher.Found("applies", hunk.line - 1) for hunk in edit.hunks])
    except launcher.NOT_PYTHON:
        return decision


def _edit(file: DiffFile, scopes: Sequence[str], data: bytes | None) -> launcher.FileEdit:
    """Return the edit of one file, each hunk with the scope in which it is found: the guessed one, or any.

    The context of a foreign diff may begin inside a docstring; then the scope has to end in __doc__.
    """
    hunks = []
    for guess, foreign in zip(scopes, file.hunks, strict=True):
        anywhere = launcher.Hunk("", foreign.line, foreign.old, foreign.new)
        tries = [dataclasses.replace(anywhere, scope=scope) for scope in (guess, "", "__doc__")]
        states = [_state(hunk, data) for hunk in tries]
        for wanted in ("applies", "applied"):
            if wanted in states:
                hunks.append(tries[states.index(wanted)])
                break
        else:
            hunks.append(anywhere)
    return launcher.FileEdit(file.path, tuple(hunks))


def _state(hunk: launcher.Hunk, data: bytes | None) -> str:
    try:
        if data is not None:
            return launcher.find_hunk(hunk, launcher.Source(data)).state
        return "conflict"
    except launcher.NOT_PYTHON:
        return "conflict"
