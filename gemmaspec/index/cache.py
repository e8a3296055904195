"""The folder for what can be fetched or worked out again. Nothing in it is ever needed, only quicker."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Return the folder, of the platform's kind."""
    return platformdirs.user_cache_path("gemmaspec")


def keep(path: Path, content: bytes) -> None:
    """Put `content` into the cache, whole or not at all. A cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def kept(path: Path) -> bytes | None:
    """Return what was kept under `path`; None when nothing was, or it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None
