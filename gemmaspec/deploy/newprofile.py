"""`profile new`: create a profile that extends an existing one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gemmaspec import data
from gemmaspec.errors import UsageError
from gemmaspec.files import write_whole
from gemmaspec.profile.find import own_folder, profile_folders, profile_names
from gemmaspec.profile.load import load_profile

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
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


def new_profile(name: str, *, parent: str) -> Path:
    """Write a profile that extends `parent` into the user's own folder, and return its file.

    Raises UsageError for a name that is invalid or taken, and for a parent that does not exist.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name; use lowercase letters, digits and hyphens")
    known = profile_names(profile_folders())
    file = own_folder() / f"{name}.yaml"
    if name in known or file.exists():
        raise UsageError(
            f"profile {name} already exists: {known.get(name, file)}", hint=f"gemmaspec profile show {name}"
        )
    loaded = load_profile(parent)
    if loaded.file.stem not in known or loaded.file.parent not in (own_folder(), data.PROFILES):
        raise UsageError(f"{parent} is in neither your own nor the shipped profiles, and `extends` searches only those")
    profile = loaded.profile
    text = _TEXT.format(
        parent=profile.name, name=name, summary=_quoted(f"{profile.summary} (my own)"), port=profile.serve.port + 1
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
    return file


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
