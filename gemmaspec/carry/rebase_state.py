"""A rebase under way: a folder with the files to look at, which outlives the process that made it.

STATE/rebase/ID/
  state.json     what is carried where, and the sha256 of the new vLLM's files
  vllm/…         the merged files, to be edited where there are conflict markers
  base/ ours/ theirs/    the old vLLM, the old vLLM patched, the new vLLM
  write/         once it is proven: what is to be put into the patch folder
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

from gemmaspec import launcher
from gemmaspec.errors import GemmaspecError, PatchConflict, PatchError, UsageError
from gemmaspec.files import state_dir, unwritable, write_whole
from gemmaspec.trees.folder import read_inside

_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MARKER: Final = re.compile(rb"^(<{7} |\|{7} |>{7} )", re.MULTILINE)
_WRITE: Final = "write"


@dataclass(frozen=True)
class CarriedFile:
    """A file of the new vLLM, where its patched code was before, and the sha256 of it unpatched."""

    path: str
    source: str
    conflicts: int
    theirs: str

    def __post_init__(self) -> None:
        """Both become paths on this machine."""
        launcher.check_path(self.path)
        launcher.check_path(self.source)


@dataclass(frozen=True)
class Carried:
    """state.json: the patch and its folder, from which release to which vLLM; `floor` is "" unless it was given."""

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
    """The versions of one file that a merge is about."""

    file: CarriedFile
    base: bytes
    ours: bytes
    theirs: bytes
    merged: bytes


def place_of(id_: str) -> Path:
    """The folder of a patch's rebase. UsageError for what is no patch id."""
    check_id(id_)
    return state_dir() / "rebase" / id_


def check_id(id_: str) -> None:
    """UsageError for what is no patch id; it becomes the name of a folder."""
    if not _ID.fullmatch(id_):
        raise UsageError(f"{id_!r} is no patch id: small letters, digits and single hyphens")


def refuse_second(id_: str) -> None:
    """UsageError when a rebase of the patch is under way."""
    if place_of(id_).exists():
        raise UsageError(
            f"a rebase of {id_} is under way in {place_of(id_)}",
            hint=f"gemmaspec patch continue {id_}    # or, to give it up: gemmaspec patch continue {id_} --abort",
        )


def begin(state: Carried, merges: Sequence[Merge]) -> Path:
    """Write the folder, whole or not at all."""
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
    """The state of a patch's rebase. UsageError when there is none, PatchError when it is not as it was written."""
    place = place_of(id_)
    if not place.is_dir():
        raise UsageError(f"no rebase of {id_} is under way", hint=f"gemmaspec patch rebase {id_} --to RELEASE")
    try:
        state: Carried = launcher.decode(Carried, json.loads((place / "state.json").read_bytes()), "state")
        launcher.ensure(state.schema == 1 and state.patch == id_ and state.files, "it is about something else")
    except (OSError, ValueError, RecursionError) as error:
        raise PatchError(f"{place / 'state.json'}: {error}", hint=f"gemmaspec patch continue {id_} --abort") from None
    return state


def resolved(state: Carried) -> Mapping[str, tuple[bytes, bytes]]:
    """By path: the new vLLM's file, and the edited one.

    Raises PatchConflict while there are markers in it, PatchError when a file is gone or was not to be edited.
    """
    place = place_of(state.patch)
    found: dict[str, tuple[bytes, bytes]] = {}
    for file in state.files:
        theirs, edited = read_inside(place / "theirs", file.path), read_inside(place, file.path)
        if theirs is None or edited is None or launcher.sha256(theirs) != file.theirs:
            raise PatchError(
                f"{place}: {file.path} or theirs/{file.path} is gone, or the latter was edited",
                hint=f"gemmaspec patch continue {state.patch} --abort",
            )
        marker = _MARKER.search(edited)
        if marker:
            line = edited.count(b"\n", 0, marker.start()) + 1
            raise conflict(state, f"{place / file.path}:{line}: there is still a conflict marker")
        found[file.path] = theirs, edited
    return found


def conflict(state: Carried, why: str) -> GemmaspecError:
    """The error that leaves the folder for a human."""
    place, id_ = place_of(state.patch), state.patch
    paths = " ".join(str(place / file.path) for file in state.files)
    return PatchConflict(
        why,
        hint=f"edit {paths}, then: gemmaspec patch continue {id_}    # or, to give it up: … {id_} --abort",
    )


def prepare_write(state: Carried, files: Mapping[str, str]) -> None:
    """Note what is to be written into the patch folder, so that being killed while it is written does no harm."""
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
    """Whether all that is left is to write."""
    return (place_of(id_) / _WRITE).is_dir()


def write(state: Carried) -> str:
    """Put what was noted into the patch folder, patch.yaml last, and end the rebase; the name of the new diff."""
    files = sorted((place_of(state.patch) / _WRITE).iterdir(), key=lambda file: file.name == "patch.yaml")
    for file in files:
        write_whole(Path(state.folder) / file.name, file.read_bytes().decode("utf-8"))
    end(state.patch)
    return files[0].name


def end(id_: str) -> None:
    """Remove the folder. UsageError when there is none."""
    if not place_of(id_).is_dir():
        raise UsageError(f"no rebase of {id_} is under way")
    remove(place_of(id_))


def remove(place: Path) -> None:
    """Remove a folder at once, as others see it."""
    try:
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".old-") as beside:
            place.rename(Path(beside) / place.name)
    except OSError as error:
        raise unwritable(place, error) from None


def abort(id_: str) -> None:
    """Give a rebase up. UsageError when its result is half written: then it can only be ended."""
    if is_proven(id_):
        raise UsageError(f"{id_} is proven and is being written", hint=f"gemmaspec patch continue {id_}")
    end(id_)
