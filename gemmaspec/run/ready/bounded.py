"""Bounded calls into an engine, because a lost docker daemon must not hang a wait."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine.server import Engine, Server

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
    """A server's log, followed in a thread; reading it here never blocks.

    Its lines wait in a deque, which has no lock: an interrupt that comes just as this thread takes a queue's leaves it
    taken, and `close` would wait for it for ever.
    """

    def __init__(self, engine: Engine, server: Server) -> None:
        self._lines: deque[str] = deque()
        self._ended = threading.Event()
        self._closed = threading.Event()
        follow = threading.Thread(target=self._follow, args=(engine, server), name="gemmaspec-log", daemon=True)
        follow.start()

    def read(self) -> list[str]:
        """Return the lines since the last call, at most as many as are buffered."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def read_rest(self, *, seconds: float) -> list[str]:
        """Return the lines up to the end of the log, or those that arrive within `seconds`."""
        deadline = time.monotonic() + seconds
        lines = self.read()
        while time.monotonic() < deadline and not self._ended.wait(0.02):
            lines += self.read()
        return lines + self.read()

    def close(self) -> None:
        """Release the thread, now or with the next line of the log."""
        self._closed.set()

    def _follow(self, engine: Engine, server: Server) -> None:
        try:
            for line in engine.logs(server, follow=True):
                while len(self._lines) >= MAX_WAITING and not self._closed.wait(0.02):
                    pass
                if self._closed.is_set():
                    return
                self._lines.append(line)
        except Exception:  # noqa: S110 - a lost log ends like a finished one; the engine's state says more
            pass
        finally:
            self._ended.set()
