"""Writing files whole or not at all, and the folders gemmaspec keeps on this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import platformdirs

from gemmaspec.errors import EnvironmentMissing


def state_dir() -> Path:
    """The folder for stacks, managed runtimes and made models ($GEMMASPEC_STATE, else the platform's)."""
    chosen = os.environ.get("GEMMASPEC_STATE")
    return Path(chosen).absolute() if chosen else platformdirs.user_state_path("gemmaspec")


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` through a temporary sibling, so that a reader sees the old file or the new one.

    Raises EnvironmentMissing when the disk is full or the folder cannot be written; `path` is then unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> EnvironmentMissing:
    """The one sentence for a file that cannot be written."""
    if error.errno == errno.ENOSPC:
        return EnvironmentMissing(
            f"no space left on the disk of {path.parent}: {path.name} was not written, nothing was changed",
            hint=f"df -h {path.parent}    # or set GEMMASPEC_STATE to a folder on a larger disk",
        )
    return EnvironmentMissing(f"cannot write {path}: {error.strerror}", hint=f"ls -ld {path.parent}")
