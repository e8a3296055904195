"""The cache folder, for everything that can be fetched or computed again. Losing it only costs time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Return the cache folder of the platform."""
    return platformdirs.user_cache_path("gemmaspec")


def keep(path: Path, content: bytes) -> None:
    """Put `content` into the cache, completely or not at all. An unwritable cache is not an error."""
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
    """Return the cached content of `path`; None if it is missing or unreadable."""
    try:
        return path.read_bytes()
    except OSError:
        return None
