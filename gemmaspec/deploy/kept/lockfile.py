"""Where a profile's lock is, and what it contains."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemmaspec import data
from gemmaspec.errors import GemmaspecError, ProfileError
from gemmaspec.files import UnreadableFile, read_regular
from gemmaspec.profile.find import own_folder
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.runs import vllm_of

if TYPE_CHECKING:
    from gemmaspec.lock.document import Lock


class DamagedLock(ProfileError):
    """An invalid lock; locking again replaces it."""


SUFFIX: Final = ".lock"


def release_of(loaded: Loaded) -> str | None:
    """Return the vLLM release that a profile will run, according to itself or else its lock; None if unknown."""
    return vllm_of(loaded.profile) or _locked_release(loaded)


def _locked_release(loaded: Loaded) -> str | None:
    if not lock_file(loaded).is_file():
        return None
    lock = None
    with contextlib.suppress(GemmaspecError):  # whoever needs the lock itself says what is wrong with it
        lock = read_lock(loaded)
    if lock is None:
        return None
    runtime, image = loaded.profile.runtime, loaded.profile.image
    same = lock.image.name == image if lock.image else runtime.python is not None
    return lock.versions.vllm if same else None


def lock_file(loaded: Loaded) -> Path:
    """Return the path of a profile's lock: next to its file, or in the user's profile folder for a shipped profile."""
    shipped = loaded.file.is_relative_to(data.PROFILES)
    folder = own_folder() if shipped else loaded.file.parent
    return folder / f"{loaded.file.stem}{SUFFIX}"


def read_lock(loaded: Loaded) -> Lock | None:
    """Return the lock of a profile, if any. Raises ProfileError for an invalid lock or one of another profile."""
    from gemmaspec.lock.text import MAX_CHARACTERS, parse_lock

    file = lock_file(loaded)
    try:
        content = read_regular(file, limit=4 * MAX_CHARACTERS, follow=True)
    except UnreadableFile as error:
        raise ProfileError(f"{file}: cannot read the lock: {error.why}", hint=error.hint) from None
    if content is None:
        return None
    try:
        lock = parse_lock(content.decode("utf-8"), file=str(file))
    except UnicodeDecodeError:
        raise DamagedLock(f"{file}: the lock is not UTF-8 text", hint=f"gemmaspec lock {loaded.typed}") from None
    except ProfileError as error:
        raise DamagedLock(error.message, hint=f"gemmaspec lock {loaded.typed}    # writes a new lock") from None
    if lock.profile != loaded.profile.name:
        raise ProfileError(f"{file}: the lock belongs to {lock.profile}, not to {loaded.profile.name}")
    return lock
