"""`patch new` and `patch commit`: a copy of vLLM's files to edit, and the patch that the edit makes.

STATE/new/ID/
  state.json     of which vLLM the files are, and the sha256 of each
  vllm/…         to be edited
  pristine/      as they were
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec import launcher
from gemmaspec.carry import rebase_state
from gemmaspec.carry.newpatch import NewPatch, folder_for, write_patch
from gemmaspec.carry.newvariant import Say, diffs_of, release_number
from gemmaspec.carry.rebase import Rebased, resume
from gemmaspec.carry.rebase_state import Carried, CarriedFile, Merge
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, PatchError, UsageError
from gemmaspec.files import state_dir, unwritable, write_whole
from gemmaspec.patching.patch import Patch, load_patch
from gemmaspec.trees import listing as listing_of
from gemmaspec.trees.folder import read_inside
from gemmaspec.trees.reader import Reader, is_source, open_reader


@dataclass(frozen=True)
class ScratchFile:
    """A file of the copy, and its sha256 before any edit."""

    path: str
    sha256: str

    def __post_init__(self) -> None:
        """It becomes a path on this machine."""
        launcher.check_path(self.path)


@dataclass(frozen=True)
class Scratch:
    """state.json."""

    schema: int
    patch: str
    vllm: str
    place: str
    files: tuple[ScratchFile, ...]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A patch that was written, or an older one with one more variant; `unchanged` files are not in it."""

    patch: Patch
    diff: str
    versions: str
    unchanged: Sequence[str]


def open_scratch(
    id_: str, paths: Sequence[str], *, release: str | None = None, tree: Path | None = None
) -> Sequence[Path]:
    """Copy files of one vLLM, pristine, to be edited; a second call adds files. The places of the copies.

    Raises UsageError for a file that no patch can edit or another vLLM than before, EnvironmentMissing for one
    that the vLLM does not have.
    """
    place = place_of(id_)
    for path in paths:
        if not is_source(path):
            raise UsageError(f"--file {path!r} is no .py file in vllm/", hint="--file vllm/v1/core/kv_cache_utils.py")
    reader = open_reader(release, tree, functools.cache(listing_of.published))
    before = load(id_) if place.exists() else Scratch(1, id_, reader.vllm, str(reader.place), ())
    if before.place != str(reader.place) or not paths:
        why = f"{id_} is being made from {before.place}" if paths else "name the files to edit"
        raise UsageError(why, hint=f"--file vllm/….py; to begin again: rm -r {place}")
    new = [path for path in dict.fromkeys(paths) if path not in {file.path for file in before.files}]
    found = _pristine(reader, new)
    files = (*before.files, *(ScratchFile(path, launcher.sha256(data)) for path, data in found.items()))
    _copy(place, found, dataclasses.replace(before, files=files))
    return [place / path for path in paths]


def _pristine(reader: Reader, paths: Sequence[str]) -> dict[str, bytes]:
    found = {path: data for path, data in reader.files(paths).items() if data is not None}
    for path in paths:
        if path not in found:
            raise EnvironmentMissing(f"{reader.place} has no {path}")
    return found


def _copy(place: Path, files: Mapping[str, bytes], state: Scratch) -> None:
    """The copies, then the state, which alone says that they are there."""
    try:
        for path, data in files.items():
            for file in (place / "pristine" / path, place / path):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
    except OSError as error:
        raise unwritable(place, error) from None
    write_whole(place / "state.json", json.dumps(dataclasses.asdict(state), indent=1) + "\n")


def commit(id_: str, *, folder: Path | None = None, say: Say = lambda _: None) -> Committed:
    """Make the edits a patch: least diffs, and a patch.yaml to be filled in, or one more variant of an older patch.

    Raises PatchError for an edit that no patch can say, UsageError when nothing was opened or edited.
    """
    state = load(id_)
    pairs = _pairs(state)
    unchanged = [path for path, pair in pairs.items() if pair[0] == pair[1]]
    if len(unchanged) == len(pairs):
        raise UsageError(
            f"no file of {id_} was edited", hint=f"edit {' '.join(str(place_of(id_) / path) for path in pairs)}"
        )
    pairs = {path: pair for path, pair in pairs.items() if path not in unchanged}
    place = folder_for(folder)
    if (place / id_ / "patch.yaml").is_file():
        added = _add_variant(state, pairs, place, say)
        patch, diff, versions = load_patch(place / id_), added.diff, added.versions
    else:
        diffs = diffs_of(pairs)
        new = NewPatch(
            id=id_,
            diff="".join(one.text for one in diffs),
            floor=release_number(state.vllm),
            scopes={one.edit.path: one.scopes for one in diffs},
        )
        patch = write_patch(new, place)
        diff, versions = patch.text.variants[0].diff, patch.text.variants[0].versions
    rebase_state.remove(place_of(id_))
    return Committed(patch=patch, diff=diff, versions=versions, unchanged=unchanged)


def _add_variant(state: Scratch, pairs: Mapping[str, tuple[bytes, bytes]], folder: Path, say: Say) -> Rebased:
    """A variant made by hand, of a patch that is there: a rebase whose merge is done."""
    rebase_state.refuse_second(state.patch)
    merges = [
        Merge(
            file=CarriedFile(path=path, source=path, conflicts=0, theirs=launcher.sha256(old)),
            base=old,
            ours=old,
            theirs=old,
            merged=new,
        )
        for path, (old, new) in pairs.items()
    ]
    carried = Carried(
        schema=1,
        patch=state.patch,
        folder=str((folder / state.patch).absolute()),
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
        raise type(error)(error.message, hint="edit it again, then commit again") from None


def _pairs(state: Scratch) -> dict[str, tuple[bytes, bytes]]:
    """Each file as it was and as it is now."""
    place, found = place_of(state.patch), {}
    for file in state.files:
        old, new = read_inside(place / "pristine", file.path), read_inside(place, file.path)
        if old is None or new is None or launcher.sha256(old) != file.sha256:
            raise PatchError(
                f"{place}: {file.path} or pristine/{file.path} is gone, or the latter was edited",
                hint=f"rm -r {place}    # and begin again: gemmaspec patch new {state.patch} …",
            )
        found[file.path] = old, new
    return found


def place_of(id_: str) -> Path:
    """The folder of a patch that is being made. UsageError for what is no patch id."""
    rebase_state.check_id(id_)
    return state_dir() / "new" / id_


def load(id_: str) -> Scratch:
    """Its state. UsageError when there is none, PatchError when it is not as it was written."""
    file = place_of(id_) / "state.json"
    if not file.parent.is_dir():
        raise UsageError(
            f"no patch {id_} is being made", hint=f"gemmaspec patch new {id_} --release … --file vllm/….py"
        )
    try:
        state: Scratch = launcher.decode(Scratch, json.loads(file.read_bytes()), "state")
        launcher.ensure(state.schema == 1 and state.patch == id_, "it is about something else")
    except (OSError, ValueError, RecursionError) as error:
        raise PatchError(f"{file}: {error}", hint=f"rm -r {file.parent}") from None
    return state
