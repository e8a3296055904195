"""Where a profile's lock is, and what it contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.files import UnreadableFile, read_regular
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.find import own_folder
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.model import Profile

if TYPE_CHECKING:
    from gemmaspec.core.lock.document import Lock


class DamagedLock(ProfileError):
    """An invalid lock; locking again replaces it."""


SUFFIX: Final = ".lock"


def release_of(loaded: Loaded) -> str | None:
    """Return the vLLM release that a profile will run, according to itself or else its lock; None if unknown."""
    return release_by(loaded.profile, lock_of(loaded))


def release_by(profile: Profile, lock: Lock | ProfileError | None) -> str | None:
    """Return the same, given what `lock_of` returns."""
    stated = vllm_of(profile)
    if stated or lock is None or isinstance(lock, ProfileError):
        return stated
    if lock.image:
        same = lock.image.name == profile.image
    else:
        same = profile.runtime.python is not None
    if same and lock.versions:
        return lock.versions.vllm
    return None


def lock_of(loaded: Loaded) -> Lock | ProfileError | None:
    """Return the lock of a profile, if any, or why it cannot be read: only some commands need it."""
    try:
        return read_lock(loaded)
    except ProfileError as error:
        return error


def lock_file(loaded: Loaded) -> Path:
    """Return the path of a profile's lock: next to its file, or in the user's profile folder for a shipped profile."""
    shipped = loaded.file.is_relative_to(data.PROFILES)
    folder = own_folder() if shipped else loaded.file.parent
    return folder / f"{loaded.file.stem}{SUFFIX}"


def read_lock(loaded: Loaded) -> Lock | None:
    """Return the lock of a profile, if any. Raises ProfileError for an invalid lock or one of another profile."""
    from gemmaspec.core.lock.text import MAX_CHARACTERS, parse_lock

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
