"""Allow only one builder at a time, even if one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmaspec.files import make_folder, unwritable


@contextlib.contextmanager
def held_lock(path: Path, *, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock file `path` and yield its descriptor. `waiting` is called once if another process holds it.

    A child process can inherit the descriptor. If this process is killed, the lock is held until the child ends too, so
    nobody removes a folder in which an orphan still installs. (filelock keeps its descriptor private, so it cannot do
    this.) Raise EnvironmentMissing if the folder is not writable.
    """
    try:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        _lock(descriptor, waiting)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
