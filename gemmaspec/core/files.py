"""Read untrusted files, write files atomically, and find the state folder and the cache."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shlex
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO, Final

import platformdirs

from gemmaspec.core.errors import EnvironmentMissing


def state_dir() -> Path:
    """Return the folder for stacks, managed runtimes and tiny models ($GEMMASPEC_STATE, else the platform's)."""
    chosen = os.environ.get("GEMMASPEC_STATE")
    if chosen:
        return Path(chosen).absolute()
    return platformdirs.user_state_path("gemmaspec")


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, the state folder readable by its owner alone. Raises OSError."""
    state = state_dir()
    if folder.is_relative_to(state) and not state.exists():
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def other_owner(path: Path) -> str | None:
    """Return the other user to whom a file of the state folder belongs, or the nearest folder that can be seen."""
    state = state_dir()
    for folder in (path, *path.parents):
        if not folder.is_relative_to(state):
            break
        with contextlib.suppress(OSError):
            owner = folder.lstat().st_uid
            if owner == os.geteuid():
                return None
            return name_of(owner)
    return None


def name_of(user: int) -> str:
    """Return the name of a user; # and the number of one that this machine does not know."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"#{user}"


def sudo_as(owner: str) -> str:
    """Return the way out for somebody who meets another user's files."""
    return f"sudo -u {shlex.quote(owner)} gemmaspec …    # or set GEMMASPEC_STATE to a folder of your own"


MAX_STATE: Final = 8 * 1024 * 1024
"""Maximum bytes of a file of the state folder."""

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnreadableFile(EnvironmentMissing):
    """An existing file is unreadable or invalid; the message names it and the reason."""

    def __init__(self, path: Path, why: str, *, hint: str | None = None) -> None:
        if owner := other_owner(path):
            why, hint = f"{why}; it belongs to {owner}", sudo_as(owner)
        super().__init__(f"cannot read {path}: {why}", hint=hint or f"ls -ld {path}")
        self.path = path
        self.why = why


def read_regular(path: Path, *, limit: int = MAX_STATE, follow: bool = False) -> bytes | None:
    """Return the bytes of a regular file; None if it is missing.

    Never block and never read more than `limit` bytes. Raise UnreadableFile for a folder, a pipe, a device, a longer or
    unreadable file, and for a link unless `follow`.
    """
    try:
        file = open_regular(path, follow=follow)
    except FileNotFoundError:
        if path.is_symlink():
            raise UnreadableFile(path, "it is a link to a file that does not exist") from None
        return None
    with file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise UnreadableFile(path, str(error.strerror)) from None
    if len(content) > limit:
        raise UnreadableFile(path, f"it is longer than {limit} bytes")
    return content


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Open a regular file for reading, without blocking. Raise FileNotFoundError or UnreadableFile."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableFile(path, _kind(path) or str(error.strerror)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableFile(path, _kind(path) or "it is not a file")
    return os.fdopen(descriptor, "rb")


def _kind(path: Path) -> str:
    """Return what is in the file's place; '' for a regular file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    for matches, kind in _KINDS:
        if matches(mode):
            return f"it is {kind}, not a file"
    return ""


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` through a temporary sibling, so that a reader sees the old file or the new one.

    Raise EnvironmentMissing if the disk is full or the folder is not writable; `path` is then unchanged.
    """
    try:
        make_folder(path.parent)
        _replaced(path, text.encode(), mode=mode, durable=True)
    except OSError as error:
        raise unwritable(path, error) from None


def _replaced(path: Path, content: bytes, *, mode: int, durable: bool) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def cache_dir() -> Path:
    """Return the platform's cache folder, for what can be fetched or computed again. Losing it only costs time."""
    return platformdirs.user_cache_path("gemmaspec")


def keep(path: Path, content: bytes) -> None:
    """Put `content` into the cache, completely or not at all. An unwritable cache is not an error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _replaced(path, content, mode=0o600, durable=False)


def kept(path: Path) -> bytes | None:
    """Return the cached content of `path`; None if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def unwritable(path: Path, error: OSError) -> EnvironmentMissing:
    """Return the error for a file that cannot be written."""
    if error.errno == errno.ENOSPC:
        return EnvironmentMissing(
            f"cannot write {path}: no space left on the disk; nothing was changed",
            hint=f"df -h {path.parent}    # or set GEMMASPEC_STATE to a folder on a larger disk",
        )
    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        return EnvironmentMissing(
            f"cannot lock {path}: {error.strerror}, so that two commands could work on one server",
            hint="export GEMMASPEC_STATE=…    # a folder on a local disk; a network's may have no locks",
        )
    if error.errno in (errno.EISDIR, errno.ENOTEMPTY) and path.is_dir():
        return EnvironmentMissing(f"cannot write {path}: a folder is in its place", hint=f"ls -ld {path}")
    if error.errno in (errno.EACCES, errno.EPERM) and (owner := other_owner(path)):
        return EnvironmentMissing(
            f"cannot read or write {path}: {error.strerror}; it belongs to {owner}", hint=sudo_as(owner)
        )
    return EnvironmentMissing(f"cannot write {path}: {error.strerror}", hint=f"ls -ld {path.parent}")
