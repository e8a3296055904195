"""What tells one state folder from another, also where only a label of it can be seen: a word in one of its files."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import make_folder, read_regular, state_dir, unwritable

_FILE: Final = "state-id"
_ID: Final = re.compile("[0-9a-f]{32}")


def state_id() -> str | None:
    """Return the state folder's id; None if it has none yet. Raises EnvironmentMissing for a file that holds none."""
    file = state_dir() / _FILE
    content = read_regular(file, limit=200)
    if content is None:
        return None
    text = content.decode("ascii", "replace").strip()
    if not _ID.fullmatch(text):
        raise EnvironmentMissing(
            f"{file} does not hold the id of a state folder", hint=f"rm {file}    # the next up makes another"
        )
    return text


def make_state_id() -> str:
    """Return the state folder's id, and make one if it has none.

    Of two that make one at the same moment, both get the first. Raises EnvironmentMissing as `state_id` does, and for a
    folder that cannot be written.
    """
    file = state_dir() / _FILE
    while (known := state_id()) is None:
        try:
            make_folder(file.parent)
            handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{_FILE}.")
            try:
                with os.fdopen(handle, "w") as written:
                    written.write(f"{uuid.uuid4().hex}\n")
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, file)  # whole or not at all, and never over another's
            finally:
                Path(temporary).unlink()
        except OSError as error:
            raise unwritable(file, error) from None
    return known
