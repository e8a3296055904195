"""A fast digest of a model's folder, which does not cover the weights themselves."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import IO, Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.models.needed import is_needed, is_weights

LARGEST_HEADER: Final = 100 * 1024 * 1024
"""Bytes; the safetensors library refuses longer headers."""
LARGEST_TEXT: Final = 512 * 1024 * 1024
"""Bytes; Gemma 4's tokenizer.json has 32 million."""


def folder_digest(folder: Path) -> str:
    """Return sha256:… over the files that vLLM reads, by name: small files whole, safetensors by size and header.

    The header contains every tensor's name, type, shape and offsets. The digest does not detect weights that were
    trained further in the same shapes. Raise EnvironmentMissing for an unreadable folder or file.
    """
    whole = hashlib.sha256()
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and is_needed(path.name))
        for name in names:
            with (folder / name).open("rb") as file:
                if is_weights(name):
                    part = _header_digest(file, folder / name)
                else:
                    part = _content_digest(file, folder / name)
            whole.update(f"{name}\0{part}\n".encode())
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {error.filename or folder}: {error.strerror}") from None
    return f"sha256:{whole.hexdigest()}"


def _content_digest(file: IO[bytes], path: Path) -> str:
    if path.stat().st_size > LARGEST_TEXT:
        raise EnvironmentMissing(f"{path} is too large for such a file of a model: more than {LARGEST_TEXT} bytes")
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type] # a real file


def _header_digest(file: IO[bytes], path: Path) -> str:
    start = file.read(8)
    if len(start) == 8:
        length = struct.unpack("<Q", start)[0]
    else:
        length = LARGEST_HEADER + 1
    if length > LARGEST_HEADER:
        raise EnvironmentMissing(f"{path} is not a safetensors file, or is truncated")
    digest = hashlib.sha256(start + file.read(length)).hexdigest()
    return f"{digest} {path.stat().st_size}"
