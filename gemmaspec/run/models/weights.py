"""The tensors of a checkpoint's safetensors files, by their headers."""

from __future__ import annotations

from typing import Final

from gemmaspec.core.checkpoint.header import PREFIX, header_length, parse_header
from gemmaspec.core.checkpoint.model import Tensor
from gemmaspec.core.errors import CheckpointError
from gemmaspec.run.models.files import CheckpointFiles

FIRST_PIECE: Final = 16 * 1024
"""Bytes of the first request; enough for the header of one of many BF16 files, with some 90 tensors."""
MOST_HEADERS: Final = 64 * 2**20
"""Maximum bytes of all headers of one checkpoint."""


def read_tensors(files: CheckpointFiles, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    """Return every tensor, from the headers alone. Raise CheckpointError if the headers are too large or invalid."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=8) as pool:
        pieces = list(pool.map(lambda name: files.read(name, 0, min(files.sizes[name], FIRST_PIECE)), names))
        lengths = [
            header_length(piece, file_size=files.sizes[name], where=name)
            for name, piece in zip(names, pieces, strict=True)
        ]
        if sum(lengths) > MOST_HEADERS:
            raise CheckpointError(
                f"{sum(lengths)} bytes of headers in {len(names)} files, more than the limit of {MOST_HEADERS}"
            )
        read = list(pool.map(lambda name, piece, length: _tensors(files, name, piece, length), names, pieces, lengths))
    tensors = tuple(tensor for some in read for tensor in some)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise CheckpointError("a tensor is stored in two weight files")
    return tensors


def _tensors(files: CheckpointFiles, name: str, piece: bytes, length: int) -> tuple[Tensor, ...]:
    if len(piece) < PREFIX + length:
        piece += files.read(name, len(piece), PREFIX + length)
    return parse_header(piece[PREFIX : PREFIX + length], file_size=files.sizes[name], where=name)
