"""What a watch knows of its server, on the host as in a container, and the question with which it finds out more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gemmaspec.core.live.faults import Event, Faults
from gemmaspec.core.live.sample import Sample
from gemmaspec.look.sidecar.rounds import Known

LONGEST_S: Final = 600.0
"""How long an answer is waited for; the question after it may show that a server which hung is well again."""

_GONE_AFTER: Final = 3
"""Consecutive failed readings before the server is called unreachable."""


def body(model: str) -> dict[str, Any]:
    """Return the request of one token, for /v1/chat/completions."""
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 1}


@dataclass(kw_only=True)
class Question:
    """A question to a server that looks idle, asked in the background, one at a time: one that hangs never answers."""

    _thread: threading.Thread | None = None
    _asked: float = float("-inf")
    """When the last question was sent, by the monotonic clock."""

    @property
    def waits(self) -> bool:
        """Return whether a question is open: neither answered nor refused."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, send: Callable[[], None], *, every_s: float) -> None:
        """Send a question, unless one waits or the last one was sent less than `every_s` seconds ago.

        `send` returns once there is an answer or none can come, and handles its own errors.
        """
        now = time.monotonic()
        if self.waits or now - self._asked < every_s:
            return
        self._asked = now
        self._thread = threading.Thread(target=send, name="question", daemon=True)
        self._thread.start()


@dataclass(kw_only=True)
class KnownOfServer(Known):
    """What the looks at one server have shown."""

    faults: Faults = field(default_factory=Faults)
    question: Question = field(default_factory=Question)
    failures: int = 0
    """Readings in a row that have failed."""

    @property
    def unreachable(self) -> bool:
        """Return whether too many readings in a row have failed."""
        return self.failures >= _GONE_AFTER

    def missed(self) -> bool:
        """Count a failed reading, and return whether the server is unreachable from this one on."""
        self.failures += 1
        return self.failures == _GONE_AFTER

    def taken(self, sample: Sample, *, power_w: float | None = None) -> list[Event]:
        """Return the faults that begin or end with a reading; `power_w` is the GPU's draw, None if unknown."""
        self.failures = 0
        return self.faults.add(sample, power_w=power_w, asked=self.question.waits)

    def ask_if_silent(self, send: Callable[[], None], *, power_w: float | None = None) -> None:
        """Ask a server that seems to do nothing for a token, once in the time after which it counts as hanging."""
        if self.faults.silent(power_w=power_w):
            self.question.ask(send, every_s=self.faults.limits.patience(power_w))
