"""`profile new`: a profile that extends another one, or one from what somebody serves with today."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec import data, strict_yaml
from gemmaspec.errors import ProfileError, UsageError
from gemmaspec.files import write_whole
from gemmaspec.machine import nvidia
from gemmaspec.profile.find import own_folder, profile_folders, profile_names
from gemmaspec.profile.load import load_profile
from gemmaspec.profile.machines import ANY_GPU, machine_of
from gemmaspec.profile.takeover import TakenOver, from_command
from gemmaspec.profile.takeover_compose import from_compose
from gemmaspec.releases.facts import newest

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MOST: Final = 2**20
_TEXT: Final = """\
extends: {parent}
name: {name}
summary: {summary}

# What differs from {parent} goes here. `gemmaspec profile show {name}` prints everything that it inherits, and
# `null` removes a value. An example:
#
# serve:
#   port: {port}
"""


@dataclass(frozen=True, kw_only=True)
class New:
    """A profile that was written."""

    file: Path
    left: tuple[str, ...] = ()
    """What of the source could not be taken over, each with what gemmaspec does instead."""


def new_profile(name: str, *, parent: str) -> New:
    """Write a profile that extends `parent` into the user's own folder.

    Raises UsageError for a name that is invalid or taken, and for a parent that does not exist.
    """
    file = _new_file(name)
    loaded = load_profile(parent)
    known = profile_names(profile_folders())
    if loaded.file.stem not in known or loaded.file.parent not in (own_folder(), data.PROFILES):
        raise UsageError(f"{parent} is in neither your own nor the shipped profiles, and `extends` searches only those")
    profile = loaded.profile
    text = _TEXT.format(
        parent=profile.name, name=name, summary=_quoted(f"{profile.summary} (my own)"), port=profile.serve.port + 1
    )
    return _written(file, text)


def new_from_command(name: str, command: str) -> New:
    """Write a profile that serves what a `vllm serve` or `docker run` command serves. Raises as new_profile.

    Raises ProfileError for text that no profile can hold; and, with the file written, for values that one refuses.
    """
    return _taken_over(name, from_command(command), "a command line")


def new_from_compose(name: str, source: Path) -> New:
    """Write a profile that serves what a Compose file serves. Raises as new_from_command."""
    try:
        text = source.read_bytes()[: _MOST + 1]
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None
    return _taken_over(name, from_compose(text, file=str(source)), f"{source.name}, a Compose file")


def _taken_over(name: str, made: TakenOver, source: str) -> New:
    import yaml

    file = _new_file(name)
    gpus = nvidia.gpus()
    head: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "summary": f"{made.content['target']['model']}, taken over from {source}",
        "machine": (machine_of(gpus[0].name) if gpus else None) or ANY_GPU,
        "image": made.content.pop("image", None) or f"vllm/vllm-openai:v{newest()}",
    }
    text = yaml.safe_dump({**head, **made.content}, sort_keys=False, allow_unicode=True, width=100)
    left = tuple(dict.fromkeys(made.left))
    whole = f"{_comments(left)}{text}"
    strict_yaml.parse(strict_yaml.read_text(whole.encode("utf-8", "replace"), file=str(file)), file=str(file))
    written = _written(file, whole, left)
    try:
        load_profile(str(file))
    except ProfileError as error:
        raise ProfileError(error.message, hint=f"{_editor()} {file}") from None
    return written


def _editor() -> str:
    import os

    return os.environ.get("EDITOR") or "nano"


def _comments(left: Iterable[str]) -> str:
    shown = ("".join(char if char.isprintable() else " " for char in one) for one in left)
    lines = [f"#   {' '.join(one.split())}" for one in shown]
    return "\n".join(["# Not taken over:", *lines, "", ""]) if lines else ""


def _new_file(name: str) -> Path:
    """Return the file of a new profile. Raises UsageError for a name that is invalid or taken."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name; use lowercase letters, digits and hyphens")
    known = profile_names(profile_folders())
    file = own_folder() / f"{name}.yaml"
    if name in known or file.exists():
        raise UsageError(
            f"profile {name} already exists: {known.get(name, file)}", hint=f"gemmaspec profile show {name}"
        )
    return file


def _written(file: Path, text: str, left: tuple[str, ...] = ()) -> New:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, text, mode=0o600)
    return New(file=file, left=left)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
