"""One builder at a time, also across a kill."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmaspec.files import unwritable


@contextlib.contextmanager
def held_lock(path: Path, *, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock file `path`; yields its descriptor. `waiting` is called once if somebody else holds it.

    The descriptor can be handed to a child process: when this process is killed the lock stays held until the child
    has ended too, so nobody removes a folder in which an orphan still installs. (filelock keeps its descriptor
    private, which rules that out.) Raises EnvironmentMissing when the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
