"""Find profiles by name. No heavy imports, because shell completion runs this at every TAB."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import platformdirs

from gemmaspec import data
from gemmaspec.errors import UsageError

FLEET: Final = "fleet.yaml"
"""The file that lists machines in a folder of profiles; it is not a profile."""


def profile_folders() -> tuple[Path, ...]:
    """Return the folders to search: those of $GEMMASPEC_PROFILES, the user's own, the shipped one."""
    named = os.environ.get("GEMMASPEC_PROFILES", "").split(os.pathsep)
    return (*(Path(folder) for folder in named if folder), own_folder(), data.PROFILES)


def own_folder() -> Path:
    """Return the folder of the user's own profiles."""
    return platformdirs.user_config_path("gemmaspec") / "profiles"


def profile_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return every profile that can be run, by name; an earlier folder hides a later one."""
    found: dict[str, Path] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            if not file.name.startswith("_") and file.name != FLEET:
                found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def is_path(name: str) -> bool:
    """Return whether the text is a path rather than a profile's name."""
    return "/" in name or name.endswith(".yaml")


def find_profile(name: str, folders: Sequence[Path]) -> Path:
    """Return the file of a profile: a path when `name` has a slash or ends in .yaml, else a name in `folders`.

    Raise UsageError naming the nearest profiles.
    """
    if is_path(name):
        file = Path(name).expanduser()
        if not file.is_file():
            raise UsageError(f"the profile file {name} does not exist", hint="gemmaspec profile list")
        return file.absolute()
    known = profile_names(folders)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"unknown profile {name!r}{guess}", hint="gemmaspec profile list")
