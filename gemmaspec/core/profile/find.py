"""Find profiles by name. No heavy imports, because shell completion runs this at every TAB."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import platformdirs

from gemmaspec.core import data
from gemmaspec.core.errors import UsageError

TUNED: Final = "-tuned"
"""The end of the name of a profile that `tune` writes."""
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_NONE: Final = "; no profile names it"
FLEET: Final = "fleet.yaml"
"""The file that lists machines in a folder of profiles; it is not a profile."""


def profile_folders() -> tuple[Path, ...]:
    """Return the folders to search: those of $GEMMASPEC_PROFILES, the user's own, the shipped one."""
    named = os.environ.get("GEMMASPEC_PROFILES", "").split(os.pathsep)
    return (*(Path(folder) for folder in named if folder), own_folder(), data.PROFILES)


def own_folder() -> Path:
    """Return the folder of the user's own profiles."""
    return platformdirs.user_config_path("gemmaspec") / "profiles"


def profile_names(folders: Sequence[Path] | None = None) -> dict[str, Path]:
    """Return every profile that can be run, by name; an earlier folder hides a later one. None: all folders."""
    files: dict[str, Path] = {}
    for folder in profile_folders() if folders is None else folders:
        for file in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
            if not file.name.startswith("_") and file.name != FLEET and file.stem.isprintable():
                files.setdefault(file.stem, file)
    return dict(sorted(files.items()))


def is_path(name: str) -> bool:
    """Return whether the text is a path rather than a profile's name."""
    return "/" in name or name.endswith(".yaml")


def is_model(name: str) -> bool:
    """Return whether the text is spelled as a model of the Hub: owner/name."""
    return bool(_MODEL.fullmatch(name)) and not name.endswith((".yaml", ".yml"))


def serving(model: str) -> str:
    """Return the command that writes a profile for a model of the Hub."""
    return f"gemmaspec profile new mine --from-command {shlex.quote(f'vllm serve {model}')}"


def _no_file(name: str, folders: Sequence[Path]) -> UsageError:
    """Return the error for a path without a file: it may be a model, or a profile's name with its ending."""
    if name.endswith(".yaml") and Path(name).stem in profile_names(folders):
        stem = Path(name).stem
        return UsageError(
            f"{name} does not exist here; there is a profile {stem}", hint=f"gemmaspec profile show {stem}"
        )
    if is_model(name):
        naming = _named_in(name, "model", folders)
        hint = serving(name) if naming == _NONE else f"gemmaspec inspect {name}"
        return UsageError(f"{name} is a model, not a profile{naming}", hint=hint)
    if Path(name).expanduser().is_dir():
        return UsageError(f"{name} is a folder; a profile is a file", hint="gemmaspec profile list")
    return UsageError(f"the profile file {name} does not exist", hint="gemmaspec profile list")


def _named_in(value: str, key: str, folders: Sequence[Path]) -> str:
    """Return the profiles that name a value, directly or through a base, as the end of a sentence."""
    texts: dict[str, str] = {}
    for folder in folders:
        for file in folder.glob("*.yaml"):
            texts[file.stem] = file.read_text(encoding="utf-8", errors="replace")
    family: set[str] = set()
    wanted = {(key, value)}
    while wanted:
        lines = [rf"\b{key}: {re.escape(text)}\s*(?:#|,|\}}|$)" for key, text in wanted]
        line = re.compile("|".join(lines), re.MULTILINE)
        more = {stem for stem, text in texts.items() if line.search(text)} - family
        family |= more
        wanted = {("extends", stem) for stem in more}
    names = [name for name in profile_names(folders) if name in family]
    if names:
        return f"; profiles with it: {', '.join(names)}"
    return _NONE


def find_profile(name: str, folders: Sequence[Path]) -> Path:
    """Return the file of a profile: a path when `name` has a slash or ends in .yaml, else a name in `folders`.

    Raise UsageError naming the nearest profiles.
    """
    if is_path(name):
        file = Path(name).expanduser()
        if not file.is_file():
            raise _no_file(name, folders)
        return file.absolute()
    known = profile_names(folders)
    if name in known:
        return known[name]
    files = (folder / f"{name}.yaml" for folder in folders)
    if base := next(filter(Path.is_file, files), None):
        raise UsageError(
            f"{name} is a base that profiles extend, not a profile to run{_named_in(base.stem, 'extends', folders)}",
            hint="gemmaspec profile list",
        )
    if re.search(r"\bvllm\b.*\s", name):
        raise UsageError(
            "this is a command, not a profile", hint=f"gemmaspec profile new NAME --from-command {shlex.quote(name)}"
        )
    parent = name.removesuffix(TUNED)
    if parent != name and parent in known:
        raise UsageError(
            f"{parent} was not tuned yet, so {name} is missing", hint=f"gemmaspec tune {parent}    # writes it"
        )
    exact = [other for other in known if other.lower() == name.lower()]
    near = exact or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    if near:
        guess = f"; did you mean {' or '.join(near)}?"
    else:
        guess = ""
    raise UsageError(f"unknown profile {name!r}{guess}", hint="gemmaspec profile list")
