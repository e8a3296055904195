"""What a command waits for: whoever answers slowly is named after some seconds, and is asked no longer than agreed.

One command is one process, so all its threads share what is here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing

SAID_AFTER_S: Final = 10.0
"""A command that has waited so long says for what; then after twice that, and so on."""
_MOST_S: Final = 60.0
"""Seconds between two such lines, at most."""
_PAUSE_S: Final = 0.5
"""What is asked again within so short a time is the same wait: each answer may be quick, and all of them late."""


class TooSlow(EnvironmentMissing):
    """Somebody has taken all the time that a command gives him."""


class Waits:
    """The waits of one command, in any number of threads."""

    def __init__(self, *, first_s: float = SAID_AFTER_S) -> None:
        """Name a wait after `first_s` seconds."""
        self.say: Callable[[str], None] | None = None
        """Prints one line for a person; None where nobody is to see it."""
        self._lock = threading.Condition()
        self._now: dict[int, str] = {}
        self._next = 0
        self._since = 0.0
        self._ended = 0.0
        self._gap_s = first_s
        self._said_at = 0.0
        self._teller: threading.Thread | None = None
        self._until: float | None = None
        self._allowed_s = 0.0

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """Begin no further wait once so many seconds have passed in here: `on` then raises TooSlow."""
        before = self._until, self._allowed_s
        self._until, self._allowed_s = time.monotonic() + seconds, seconds
        try:
            yield
        finally:
            self._until, self._allowed_s = before

    @contextlib.contextmanager
    def on(self, whom: str) -> Iterator[None]:
        """Count the time in here as a wait for `whom`, such as "the Docker daemon". Raises TooSlow."""
        with self._lock:
            now = time.monotonic()
            if self._until is not None and now > self._until:
                late = f"{whom} answers so slowly that not all was asked within {self._allowed_s:.0f} s"
                raise TooSlow(late, hint="docker info")
            if not self._now and now - self._ended > _PAUSE_S:
                self._since = self._said_at = now
            self._next += 1
            mine = self._next
            self._now[mine] = whom
            self._tell_if_asked()
        try:
            yield
        finally:
            with self._lock:
                del self._now[mine]
                self._ended = time.monotonic()
                self._lock.notify_all()

    def _tell_if_asked(self) -> None:
        if self.say and not self._teller:
            self._teller = threading.Thread(target=self._tell, name="gemmaspec-waits", daemon=True)
            self._teller.start()

    def _tell(self) -> None:
        """Say what is waited for, until nothing has been for a moment; the next wait begins another thread."""
        with self._lock:
            while self._now or time.monotonic() - self._ended < _PAUSE_S:
                now = time.monotonic()
                if self._now and self.say and now - self._said_at >= self._gap_s:
                    whom = next(iter(self._now.values()))
                    self._said_at, self._gap_s = now, min(2 * self._gap_s, _MOST_S)
                    self.say(f"waiting for {whom} ({now - self._since:.0f} s)")
                self._lock.wait(0.1)
            self._teller = None


WAITS: Final = Waits()
"""Those of this process."""
