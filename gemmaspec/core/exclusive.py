"""Allow only one gemmaspec command at a time in a short section."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import make_folder, unwritable

_POLL_S: Final = 0.05
_threads: Final[dict[Path, threading.RLock]] = {}


@contextlib.contextmanager
def exclusively(path: Path, *, wait_s: float, taken: GemmaspecError) -> Iterator[None]:
    """Hold the lock file `path` while the body runs; raise `taken` if somebody else holds it for `wait_s` seconds.

    The lock belongs to the process (a POSIX record lock) and to the thread (an RLock), not to a descriptor. A command
    that is interrupted just as it takes or releases the lock can therefore take it again for its own cleanup, which a
    lock of filelock cannot promise. Raise EnvironmentMissing if the folder is not writable.
    """
    thread = _threads.setdefault(path, threading.RLock())
    if not thread.acquire(timeout=wait_s):
        raise taken
    try:
        with _locked(path, wait_s=wait_s, taken=taken):
            yield
    finally:
        thread.release()


@contextlib.contextmanager
def _locked(path: Path, *, wait_s: float, taken: GemmaspecError) -> Iterator[None]:
    try:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        _wait(descriptor, path, wait_s=wait_s, taken=taken)
        yield
    finally:
        os.close(descriptor)  # this releases the lock


def _wait(descriptor: int, path: Path, *, wait_s: float, taken: GemmaspecError) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # POSIX allows a system to say either
            if time.monotonic() > deadline:
                raise taken from None
            time.sleep(_POLL_S)
        except OSError as error:
            raise unwritable(path, error) from None
