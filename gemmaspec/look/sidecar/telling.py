"""Events on their way to somebody: in order, from a thread of their own, and again if they did not arrive.

A watch that waits for a receiver watches nothing, so it only leaves an event here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

WAITS_S: Final = (1.0, 5.0, 30.0, 120.0)
"""Seconds before an event is handed on again; after the last one it is given up."""
_MOST: Final = 1000
"""Events that may wait."""


@dataclass
class Telling:
    """Events on their way to one receiver."""

    waits_s: Sequence[float] = WAITS_S
    _events: queue.Queue[Callable[[], str | None]] = field(default_factory=lambda: queue.Queue(_MOST))
    _wrong: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None

    def hand_on(self, send: Callable[[], str | None]) -> None:
        """Leave an event. `send` hands it on, returns what went wrong, and handles its own errors."""
        try:
            self._events.put_nowait(send)
        except queue.Full:
            self._wrong.put(f"{_MOST} events wait to be sent; this one is dropped")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="telling", daemon=True)
            self._thread.start()

    def problems(self) -> list[str]:
        """Return what went wrong since this was last asked."""
        return [self._wrong.get() for _ in range(self._wrong.qsize())]

    def finish(self, timeout_s: float) -> bool:
        """Wait until every event is delivered or given up, and return whether none waits any more."""
        deadline = time.monotonic() + timeout_s
        while self._events.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self._events.unfinished_tasks

    def _run(self) -> None:
        while True:
            send = self._events.get()
            self._told(send)
            self._events.task_done()

    def _told(self, send: Callable[[], str | None]) -> None:
        for number, wait in enumerate([*self.waits_s, 0.0], 1):
            wrong = send()
            if not wrong:
                return
            self._wrong.put(
                f"{wrong}; told again in {wait:.0f} s" if wait else f"{wrong}; given up after {number} tries"
            )
            time.sleep(wait)
