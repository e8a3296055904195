"""The header of a safetensors file: 8 bytes of length, then JSON with every tensor's type, shape and offsets.

Format: https://huggingface.co/docs/safetensors#format. The rules are those of the format's own reader: the header is an
object, tensors follow each other without gaps, and the last one ends at the end of the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from gemmaspec.core.checkpoint.fields import load_object, printable, refuse_pointer
from gemmaspec.core.checkpoint.model import Tensor
from gemmaspec.core.errors import CheckpointError

PREFIX: Final = 8
LONGEST: Final = 32 * 2**20
"""Maximum bytes of a header. A mixture of 128 experts that stores each expert's scales separately needs 7 MB."""
BITS: Final = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one element, by safetensors' name of the type."""
_DTYPE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,15}")


def header_length(prefix: bytes, *, file_size: int, where: str) -> int:
    """Return the number of bytes of JSON after the prefix. Raise CheckpointError if it is impossible."""
    refuse_pointer(prefix, where)
    if len(prefix) < PREFIX:
        raise CheckpointError(f"{where}: with {len(prefix)} bytes it is too short for a safetensors file")
    length = int.from_bytes(prefix[:PREFIX], "little")
    if length > LONGEST:
        raise CheckpointError(f"{where}: the header claims {length} bytes, more than the limit of {LONGEST}")
    if length < 2 or PREFIX + length > file_size:
        raise CheckpointError(f"{where}: the header claims {length} bytes in a file of {file_size}")
    return length


def parse_header(raw: bytes, *, file_size: int, where: str) -> tuple[Tensor, ...]:
    """Return the tensors of one file, in the order in which they are stored.

    Raise CheckpointError for an invalid header.
    """
    content = load_object(raw, where)
    content.pop("__metadata__", None)
    placed = sorted((_placed(name, entry, where) for name, entry in content.items()), key=lambda pair: pair[0])
    _check_places(placed, size=file_size - PREFIX - len(raw), where=where)
    return tuple(tensor for _, tensor in placed)


def _placed(name: str, entry: Any, where: str) -> tuple[int, Tensor]:
    """Return where a tensor begins, and the tensor."""
    where = f"{where}: {printable(name, 120)}"
    if not name.isprintable() or len(name) > 512:
        raise CheckpointError(f"{where}: invalid name of a tensor")
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where}: must be an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise CheckpointError(f"{where}: dtype is not a type of safetensors")
    shape = _numbers(entry.get("shape"), most=8)
    offsets = _numbers(entry.get("data_offsets"), most=2)
    if shape is None:
        raise CheckpointError(f"{where}: shape is not a list of sizes")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets must be two numbers, the beginning and the end")
    nbytes = offsets[1] - offsets[0]
    if dtype in BITS and math.prod(shape) * BITS[dtype] != nbytes * 8:
        raise CheckpointError(f"{where}: {dtype} of shape {list(shape)} does not take {nbytes} bytes")
    return offsets[0], Tensor(name=name, dtype=dtype, shape=shape, nbytes=nbytes)


def _numbers(value: Any, *, most: int) -> tuple[int, ...] | None:
    def is_size(item: Any) -> bool:
        return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**48

    if isinstance(value, list) and len(value) <= most and all(map(is_size, value)):
        return tuple(value)
    return None


def _check_places(placed: list[tuple[int, Tensor]], *, size: int, where: str) -> None:
    """Raise CheckpointError unless the tensors cover the file without gaps and overlaps."""
    for (start, tensor), expected in zip(placed, _ends(placed), strict=False):
        if start != expected:
            raise CheckpointError(
                f"{where}: {tensor.name} begins at {start}, but the previous tensor ends at {expected}"
            )
    end = sum(tensor.nbytes for _, tensor in placed)
    if end != size:
        if end > size:
            why = "it is incomplete"
        else:
            why = f"the last {size - end} bytes belong to no tensor"
        raise CheckpointError(f"{where}: the tensors need {end} bytes, but the file has {size} for them: {why}")


def _ends(placed: list[tuple[int, Tensor]]) -> Iterator[int]:
    end = 0
    for _, tensor in placed:
        yield end
        end += tensor.nbytes
