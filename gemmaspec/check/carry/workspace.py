"""`patch new` and `patch commit`: a workspace with copies of vLLM's files, and the patch made from the edits.

STATE/new/ID/
  state.json     the vLLM that the files come from, and the sha256 of each
  vllm/…         the files to edit
  pristine/      the files before any edit
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.check.carry import rebase_state
from gemmaspec.check.carry.newpatch import NewPatch, folder_for, write_patch
from gemmaspec.check.carry.newvariant import Say, also_fits, diffs_of, release_number
from gemmaspec.check.carry.rebase import Rebased, resume
from gemmaspec.check.carry.rebase_state import Carried, CarriedFile, Merge
from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, PatchError, UsageError
from gemmaspec.core.files import state_dir, unwritable, write_whole
from gemmaspec.core.patching.patch import Patch, load_patch
from gemmaspec.run.trees import listing
from gemmaspec.run.trees.folder import read_inside
from gemmaspec.run.trees.reader import Reader, is_source, open_reader


@dataclass(frozen=True)
class WorkspaceFile:
    """A file of the workspace, and its sha256 before any edit."""

    path: str
    sha256: str

    def __post_init__(self) -> None:
        """Check the path, because it becomes a path on this machine."""
        launcher.check_path(self.path)


@dataclass(frozen=True)
class Workspace:
    """state.json."""

    schema: int
    patch: str
    vllm: str
    place: str
    files: tuple[WorkspaceFile, ...]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A new patch, or an existing one with a new variant; `unchanged` files are not part of it."""

    patch: Patch
    diff: str
    versions: str
    unchanged: Sequence[str]
    also: Sequence[str]
    """Other releases that the diff of a new patch fits."""


def open_workspace(
    id_: str, paths: Sequence[str], *, release: str | None = None, tree: Path | None = None
) -> Sequence[Path]:
    """Copy pristine files of one vLLM into a workspace and return their paths; a second call adds files.

    Raise UsageError for a file that no patch can edit, or for another vLLM than before; EnvironmentMissing for a file
    that the vLLM lacks.
    """
    place = place_of(id_)
    for path in paths:
        if not is_source(path):
            raise UsageError(
                f"--file {path!r} is not a .py file in vllm/", hint="--file vllm/v1/core/kv_cache_utils.py"
            )
    reader = open_reader(release, tree, functools.cache(listing.published))
    if place.exists():
        before = load(id_)
    else:
        before = Workspace(1, id_, reader.vllm, str(reader.place), ())
    if before.place != str(reader.place) or not paths:
        if paths:
            why = f"the workspace of {id_} contains files of {before.place}"
        else:
            why = "name the files to edit"
        raise UsageError(why, hint=f"--file vllm/….py; to begin again: rm -r {place}")
    held = {file.path for file in before.files}
    new = [path for path in dict.fromkeys(paths) if path not in held]
    contents = _pristine(reader, new)
    files = (*before.files, *(WorkspaceFile(path, launcher.sha256(data)) for path, data in contents.items()))
    _copy(place, contents, dataclasses.replace(before, files=files))
    return [place / path for path in paths]


def _pristine(reader: Reader, paths: Sequence[str]) -> dict[str, bytes]:
    contents = {path: data for path, data in reader.files(paths).items() if data is not None}
    for path in paths:
        if path not in contents:
            raise EnvironmentMissing(f"{path} is missing in {reader.place}")
    return contents


def _copy(place: Path, files: Mapping[str, bytes], state: Workspace) -> None:
    """Write the copies, then the state, which marks them as complete."""
    try:
        for path, data in files.items():
            for file in (place / "pristine" / path, place / path):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
    except OSError as error:
        raise unwritable(place, error) from None
    write_whole(place / "state.json", json.dumps(dataclasses.asdict(state), indent=1) + "\n")


def commit(id_: str, *, folder: Path | None = None, say: Say = lambda _: None) -> Committed:
    """Turn the edits into a new patch with a patch.yaml to complete, or into a new variant of an existing patch.

    Raise PatchError for an edit that a patch cannot express, UsageError without a workspace or an edit.
    """
    state = load(id_)
    pairs = _pairs(state)
    unchanged = [path for path, pair in pairs.items() if pair[0] == pair[1]]
    if len(unchanged) == len(pairs):
        files = " ".join(str(place_of(id_) / path) for path in pairs)
        raise UsageError(f"no file of {id_} was edited", hint=f"edit {files}")
    pairs = {path: pair for path, pair in pairs.items() if path not in unchanged}
    place = folder_for(folder)
    if (place / id_ / "patch.yaml").is_file():
        added = _add_variant(state, pairs, place, say)
        patch, diff, versions, also = load_patch(place / id_), added.diff, added.versions, []
    else:
        diffs = diffs_of(pairs)
        new = NewPatch(
            id=id_,
            diff="".join(edited.text for edited in diffs),
            floor=release_number(state.vllm),
            scopes={edited.edit.path: edited.scopes for edited in diffs},
            vllm=state.vllm,
            files=pairs,
        )
        patch = write_patch(new, place)
        diff, versions = patch.text.variants[0].diff, patch.text.variants[0].versions
        also = also_fits(patch, state.vllm, listing.published, say)
    rebase_state.remove(place_of(id_))
    return Committed(patch=patch, diff=diff, versions=versions, unchanged=unchanged, also=also)


def _add_variant(state: Workspace, pairs: Mapping[str, tuple[bytes, bytes]], folder: Path, say: Say) -> Rebased:
    """Add a hand-made variant to an existing patch; this is a rebase whose merge is done."""
    rebase_state.refuse_second(state.patch)
    merges = []
    for path, (old, new) in pairs.items():
        file = CarriedFile(path=path, source=path, conflicts=0, theirs=launcher.sha256(old))
        merges.append(Merge(file=file, base=old, ours=old, theirs=old, merged=new))
    its_folder = (folder / state.patch).absolute()
    carried = Carried(
        schema=1,
        patch=state.patch,
        folder=str(its_folder),
        base="",
        target=state.place,
        vllm=state.vllm,
        floor=release_number(state.vllm),
        files=tuple(merge.file for merge in merges),
    )
    rebase_state.begin(carried, merges)
    try:
        return resume(state.patch, say)
    except GemmaspecError as error:
        rebase_state.abort(state.patch)
        raise type(error)(error.message, hint="edit the file again, then commit again") from None


def _pairs(state: Workspace) -> dict[str, tuple[bytes, bytes]]:
    place, pairs = place_of(state.patch), {}
    for file in state.files:
        old, new = read_inside(place / "pristine", file.path), read_inside(place, file.path)
        if old is None or new is None or launcher.sha256(old) != file.sha256:
            raise PatchError(
                f"{place}: {file.path} or pristine/{file.path} is missing, or the latter was edited",
                hint=f"rm -r {place}    # and start again: gemmaspec patch new {state.patch} …",
            )
        pairs[file.path] = old, new
    return pairs


def place_of(id_: str) -> Path:
    """Return the workspace of a new patch. Raise UsageError for an invalid patch id."""
    rebase_state.check_id(id_)
    return state_dir() / "new" / id_


def load(id_: str) -> Workspace:
    """Return the state of a workspace. Raise UsageError if there is none, PatchError if the state was edited."""
    file = place_of(id_) / "state.json"
    if not file.parent.is_dir():
        raise UsageError(
            f"there is no workspace for a patch {id_}", hint=f"gemmaspec patch new {id_} --release … --file vllm/….py"
        )
    try:
        state: Workspace = launcher.decode(Workspace, json.loads(file.read_bytes()), "state")
        launcher.ensure(state.schema == 1 and state.patch == id_, "the file belongs to another patch or version")
    except (OSError, ValueError, RecursionError) as error:
        raise PatchError(f"{file}: {error}", hint=f"rm -r {file.parent}") from None
    return state
