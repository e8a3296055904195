"""A checkpoint in a folder of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from gemmaspec.core.data import shipped
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import state_dir
from gemmaspec.run.stack.paths import on_host

MOST_FILES: Final = 10_000

LARGEST_HASHED: Final = 256 * 2**20
"""Bytes."""


class Folder:
    """A local folder, or a snapshot in the Hugging Face cache."""

    def __init__(self, path: Path, *, source: Literal["folder", "cache"] = "folder", revision: str | None) -> None:
        self.path = path
        self.source: Literal["folder", "cache", "hub"] = source
        self.revision: str | None = revision
        self.sizes: Mapping[str, int] = _sizes(path)
        self.bytes_read = 0

    @classmethod
    def local(cls, ref: str) -> Folder:
        """Return the folder of a profile's model, or in which a tiny one ships. Raises EnvironmentMissing without."""
        path = Path(on_host(ref, state=state_dir()))
        path = path if path.exists() else shipped(ref) or path
        if not path.is_dir():
            raise EnvironmentMissing(f"the folder {path} does not exist", hint=f"ls {path.parent}")
        return cls(path, revision=None)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file of the folder."""
        try:
            with (self.path / name).open("rb") as file:
                file.seek(start)
                piece = file.read(stop - start)
        except OSError as error:
            raise EnvironmentMissing(f"cannot read {self.path / name}: {error.strerror}") from None
        self.bytes_read += len(piece)
        return piece

    def sha256(self, name: str) -> str | None:
        """Return the sha256 of a file of the folder; None if it is larger than any tokenizer."""
        if not 0 < self.sizes.get(name, 0) <= LARGEST_HASHED:
            return None
        try:
            with (self.path / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise EnvironmentMissing(f"cannot read {self.path / name}: {error.strerror}") from None

    def base_models(self) -> tuple[str, ...]:
        """Return `base_model` from the head of README.md."""
        from gemmaspec.core.checkpoint.card import base_models

        if "README.md" not in self.sizes:
            return ()
        return base_models(self.read("README.md", 0, 64 * 1024).decode("utf-8", errors="replace"))


def _sizes(path: Path) -> dict[str, int]:
    """Return the sizes of regular files only, because opening a pipe would block."""
    try:
        entries = [entry for _, entry in zip(range(MOST_FILES), path.iterdir(), strict=False)]
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except OSError as error:
        raise EnvironmentMissing(f"cannot read the folder {path}: {error.strerror}") from None
