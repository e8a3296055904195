"""Bounded calls into an engine, because a lost docker daemon must not hang a wait."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from gemmaspec.engine.server import Engine, Server
from gemmaspec.errors import EnvironmentMissing

T = TypeVar("T")

MAX_WAITING: Final = 10_000
"""Maximum number of unread lines; a server that logs faster is slowed down."""


def bounded(call: Callable[[], T], *, seconds: float, name: str) -> T:
    """Return the result of `call`, run in its own thread, which is abandoned if it takes too long.

    Raises whatever `call` raises, and EnvironmentMissing if it has not returned after `seconds`.
    """
    done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:  # handed to the caller's thread, which raises it
            done.put((None, error))

    threading.Thread(target=run, name=f"gemmaspec-{name}", daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except queue.Empty:
        raise EnvironmentMissing(f"{name} did not answer within {seconds:.0f} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # a T, as there is no error


class LogFollower:
    """A server's log, followed in a thread; reading it here never blocks."""

    def __init__(self, engine: Engine, server: Server) -> None:
        self._lines: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._ended = threading.Event()
        self._closed = threading.Event()
        follow = threading.Thread(target=self._follow, args=(engine, server), name="gemmaspec-log", daemon=True)
        follow.start()

    def read(self) -> list[str]:
        """Return the lines since the last call, at most as many as are buffered."""
        found: list[str] = []
        try:
            while len(found) < MAX_WAITING:
                found.append(self._lines.get_nowait())
        except queue.Empty:
            pass
        return found

    def read_rest(self, *, seconds: float) -> list[str]:
        """Return the lines up to the end of the log, or those that arrive within `seconds`."""
        deadline = time.monotonic() + seconds
        found = self.read()
        while time.monotonic() < deadline and not self._ended.wait(0.02):
            found += self.read()
        return found + self.read()

    def close(self) -> None:
        """Release the thread, now or with the next line of the log."""
        self._closed.set()
        self.read()

    def _follow(self, engine: Engine, server: Server) -> None:
        try:
            for line in engine.logs(server, follow=True):
                while not self._closed.is_set():
                    try:
                        self._lines.put(line, timeout=0.5)
                        break
                    except queue.Full:
                        continue
                if self._closed.is_set():
                    return
        except Exception:  # noqa: S110 - a lost log ends like a finished one; the engine's state says more
            pass
        finally:
            self._ended.set()
