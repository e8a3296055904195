"""Read a log file while it is written, truncated or replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from gemmaspec.core.files import open_regular

_BLOCK: Final = 64 * 1024
_POLL_S: Final = 0.1


def read(
    path: Path, *, tail: int | None, alive: Callable[[], bool] | None = None, block: int = _BLOCK
) -> Iterator[bytes]:
    """Yield the file's bytes from its start, or from its last `tail` lines; nothing if it is missing.

    With `alive`, yield new bytes as they come, until `alive()` is false and everything is read. A file that was
    truncated or replaced is read from its start. Raise UnreadableFile for anything but a regular file.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    try:
        file.seek(0 if tail is None else _start_of_last(file, tail, block))
        while True:
            # Check before reading, so that everything that was written before the end is still read.
            more = alive() if alive else False
            yield from _rest(file)
            if not more:
                return
            if _replaced(file, path):
                yield from _rest(file)
                file.close()
                file = open_regular(path)
            time.sleep(_POLL_S)
    finally:
        file.close()


def _rest(file: IO[bytes]) -> Iterator[bytes]:
    if os.fstat(file.fileno()).st_size < file.tell():
        file.seek(0)
    while block := file.read(_BLOCK):
        yield block


def _replaced(file: IO[bytes], path: Path) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return not os.path.samestat(now, os.fstat(file.fileno()))


def _start_of_last(file: IO[bytes], count: int, most: int) -> int:
    """Return the offset from which the last `count` lines begin, found from the end by `most` bytes at once."""
    position = file.seek(0, os.SEEK_END)
    if count <= 0:
        return position
    if position and _at(file, position - 1, 1) == b"\n":
        ends = count + 1
    else:
        ends = count
    while position > 0:
        size = min(most, position)
        position -= size
        block = _at(file, position, size)
        offset = size
        while ends and (offset := block.rfind(b"\n", 0, offset)) >= 0:
            ends -= 1
        if not ends:
            return position + offset + 1
    return 0


def _at(file: IO[bytes], position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)
