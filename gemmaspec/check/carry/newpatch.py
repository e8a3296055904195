"""A new patch folder, written completely or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmaspec.check.carry.newvariant import with_places
from gemmaspec.core import data
from gemmaspec.core.errors import UsageError
from gemmaspec.core.files import unwritable, write_whole
from gemmaspec.core.patching import rewrite
from gemmaspec.core.patching.hashes import KNOWN_FILE
from gemmaspec.core.patching.patch import Imported, Patch, load_patch


@dataclass(frozen=True, kw_only=True)
class NewPatch:
    """The content of a new patch folder; `floor` is the first release of its range, `scopes` are by file."""

    id: str
    diff: str
    floor: str
    scopes: Mapping[str, Sequence[str]]
    origin: Imported | None = None
    vllm: str = ""
    files: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """The files of the vLLM on which it was made, before and after; empty if on none."""


def folder_for(folder: Path | None) -> Path:
    """Return the folder for new patches: the given one, else the user's own, else the shipped one of a checkout."""
    if folder:
        return folder
    chosen = data.patch_folders()[-1]
    if chosen == data.PATCHES and data.PATCHES.is_relative_to(data.BUNDLED):
        raise UsageError(
            "cannot add patches to those installed with gemmaspec",
            hint="name a folder: --patches DIR    # and set GEMMASPEC_PATCHES=DIR, so that gemmaspec finds the patch",
        )
    return chosen


def refuse_existing(id_: str, folder: Path) -> None:
    """Raise UsageError if the folder already has a patch with this id."""
    if (folder / id_).exists():
        raise UsageError(f"{folder / id_} already exists", hint=f"gemmaspec patch show {id_}")


def write_patch(new: NewPatch, folder: Path) -> Patch:
    """Write the folder with a patch.yaml to complete; it is loaded as a check before it is renamed into place."""
    refuse_existing(new.id, folder)
    name = rewrite.diff_name(new.floor, ())
    variant = rewrite.NewVariant(diff=name, floor=new.floor, scopes=new.scopes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as beside:
            fresh = Path(beside) / new.id
            write_whole(fresh / name, new.diff)
            write_whole(fresh / "patch.yaml", rewrite.skeleton(new.id, variant, new.origin))
            made = load_patch(fresh)
            if new.files:
                write_whole(fresh / KNOWN_FILE, with_places(made, name, new.vllm, new.files))
                load_patch(fresh)
            fresh.rename(folder / new.id)
    except OSError as error:
        raise unwritable(folder / new.id, error) from None
    return load_patch(folder / new.id)
