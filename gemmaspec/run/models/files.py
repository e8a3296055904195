"""The files of one checkpoint, local or remote, read piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from gemmaspec.core.errors import CheckpointError


class CheckpointFiles(Protocol):
    """One checkpoint at one revision."""

    source: Literal["folder", "cache", "hub"]
    revision: str | None
    """Commit hash; None for a folder."""
    sizes: Mapping[str, int]
    """Name → bytes, of the files at the top level."""
    bytes_read: int

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes from start to stop, fewer only at the end of the file.

        Raise EnvironmentMissing if it is unreadable.
        """

    def sha256(self, name: str) -> str | None:
        """Return the sha256 of the whole file; None if it is expensive to get."""

    def base_models(self) -> tuple[str, ...]:
        """Return `base_model` of the model card."""


def whole(files: CheckpointFiles, name: str, *, most: int) -> bytes | None:
    """Return a small file; None if it is missing. Raise CheckpointError if it is larger than `most` bytes."""
    size = files.sizes.get(name)
    if size is None:
        return None
    if size > most:
        raise CheckpointError(f"{name}: {size} bytes, more than the limit of {most}")
    return files.read(name, 0, size)
