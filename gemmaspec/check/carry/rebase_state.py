"""A rebase in progress: a folder with the files to edit, which outlives the process that made it.

STATE/rebase/ID/
  state.json     the patch, its target, and the sha256 of the new vLLM's files
  vllm/…         the merged files; edit them where they have conflict markers
  base/ ours/ theirs/    the old vLLM, the old vLLM patched, the new vLLM
  write/         the proven files for the patch folder
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core import launcher
from gemmaspec.core.errors import GemmaspecError, PatchConflict, PatchError, UsageError
from gemmaspec.core.files import state_dir, unwritable, write_whole
from gemmaspec.run.trees.folder import read_inside

_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MARKER: Final = re.compile(rb"^(<{7} |\|{7} |>{7} )", re.MULTILINE)
_WRITE: Final = "write"


@dataclass(frozen=True)
class CarriedFile:
    """A file of the new vLLM, the old path of its patched code, and its sha256 without the patch."""

    path: str
    source: str
    conflicts: int
    theirs: str

    def __post_init__(self) -> None:
        """Check both paths, because they become paths on this machine."""
        launcher.check_path(self.path)
        launcher.check_path(self.source)


@dataclass(frozen=True)
class Carried:
    """The content of state.json: the patch, its folder, the base and the target; `floor` is "" unless given."""

    schema: int
    patch: str
    folder: str
    base: str
    target: str
    vllm: str
    floor: str
    files: tuple[CarriedFile, ...]


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The versions of one file in a merge."""

    file: CarriedFile
    base: bytes
    ours: bytes
    theirs: bytes
    merged: bytes


def place_of(id_: str) -> Path:
    """Return the folder of a patch's rebase. Raise UsageError for an invalid patch id."""
    check_id(id_)
    return state_dir() / "rebase" / id_


def check_id(id_: str) -> None:
    """Raise UsageError for an invalid patch id, because it becomes the name of a folder."""
    if not _ID.fullmatch(id_):
        raise UsageError(f"invalid patch id {id_!r}; use lower-case letters, digits and single hyphens")


def refuse_second(id_: str) -> None:
    """Raise UsageError if a rebase of the patch is already in progress."""
    if place_of(id_).exists():
        raise UsageError(
            f"a rebase of {id_} is in progress in {place_of(id_)}",
            hint=f"gemmaspec patch continue {id_}    # or, to abort it: gemmaspec patch continue {id_} --abort",
        )


def begin(state: Carried, merges: Sequence[Merge]) -> Path:
    """Write the folder completely or not at all."""
    place = place_of(state.patch)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as beside:
            fresh = Path(beside) / "rebase"
            for merge in merges:
                sides = {"base": merge.base, "ours": merge.ours, "theirs": merge.theirs, "": merge.merged}
                for side, data in sides.items():
                    file = fresh / side / merge.file.path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(data)
            write_whole(fresh / "state.json", json.dumps(dataclasses.asdict(state), indent=1) + "\n")
            refuse_second(state.patch)
            fresh.rename(place)
    except OSError as error:
        raise unwritable(place, error) from None
    return place


def load(id_: str) -> Carried:
    """Return the state of a patch's rebase. Raise UsageError if there is none, PatchError if it was edited."""
    place = place_of(id_)
    if not place.is_dir():
        raise UsageError(f"no rebase of {id_} is in progress", hint=f"gemmaspec patch rebase {id_} --release RELEASE")
    try:
        state: Carried = launcher.decode(Carried, json.loads((place / "state.json").read_bytes()), "state")
        launcher.ensure(
            state.schema == 1 and state.patch == id_ and state.files, "the file belongs to another patch or version"
        )
    except (OSError, ValueError, RecursionError) as error:
        raise PatchError(f"{place / 'state.json'}: {error}", hint=f"gemmaspec patch continue {id_} --abort") from None
    return state


def resolved(state: Carried) -> Mapping[str, tuple[bytes, bytes]]:
    """Return, by path, the new vLLM's file and the edited one.

    Raise PatchConflict while a file has conflict markers, PatchError if a file is missing or theirs/ was edited.
    """
    place = place_of(state.patch)
    pairs: dict[str, tuple[bytes, bytes]] = {}
    for file in state.files:
        theirs, edited = read_inside(place / "theirs", file.path), read_inside(place, file.path)
        if theirs is None or edited is None or launcher.sha256(theirs) != file.theirs:
            raise PatchError(
                f"{place}: {file.path} or theirs/{file.path} is missing, or the latter was edited",
                hint=f"gemmaspec patch continue {state.patch} --abort",
            )
        marker = _MARKER.search(edited)
        if marker:
            line = edited.count(b"\n", 0, marker.start()) + 1
            raise conflict(state, f"{place / file.path}:{line}: unresolved conflict marker")
        pairs[file.path] = theirs, edited
    return pairs


def conflict(state: Carried, why: str) -> GemmaspecError:
    """Return the error that asks a person to edit the folder."""
    place, id_ = place_of(state.patch), state.patch
    paths = " ".join(str(place / file.path) for file in state.files)
    return PatchConflict(
        why,
        hint=f"edit {paths}, then: gemmaspec patch continue {id_}    # or, to abort it: … {id_} --abort",
    )


def prepare_write(state: Carried, files: Mapping[str, str]) -> None:
    """Store the files for the patch folder, so that a killed write can be resumed."""
    place = place_of(state.patch)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".write-") as beside:
            fresh = Path(beside) / _WRITE
            for name, text in files.items():
                write_whole(fresh / name, text)
            fresh.rename(place / _WRITE)
    except OSError as error:
        raise unwritable(place / _WRITE, error) from None


def is_proven(id_: str) -> bool:
    """Return whether only the write to the patch folder remains."""
    return (place_of(id_) / _WRITE).is_dir()


def write(state: Carried) -> str:
    """Copy the stored files into the patch folder, patch.yaml last; end the rebase; return the name of the new diff."""
    files = sorted(
        (place_of(state.patch) / _WRITE).iterdir(), key=lambda file: (".diff", ".json", ".yaml").index(file.suffix)
    )
    for file in files:
        write_whole(Path(state.folder) / file.name, file.read_bytes().decode("utf-8"))
    end(state.patch)
    return files[0].name


def end(id_: str) -> None:
    """Remove the folder. Raise UsageError if it is missing."""
    if not place_of(id_).is_dir():
        raise UsageError(f"no rebase of {id_} is in progress")
    remove(place_of(id_))


def remove(place: Path) -> None:
    """Remove a folder atomically, as other processes see it."""
    try:
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".old-") as beside:
            place.rename(Path(beside) / place.name)
    except OSError as error:
        raise unwritable(place, error) from None


def abort(id_: str) -> None:
    """Abort a rebase. Raise UsageError if its result is half written, because then it can only be completed."""
    if is_proven(id_):
        raise UsageError(
            f"cannot abort the rebase of {id_}: its result is being written", hint=f"gemmaspec patch continue {id_}"
        )
    end(id_)
