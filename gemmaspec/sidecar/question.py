"""A question to a server that looks idle, asked in the background: one that hangs never answers it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

LONGEST_S: Final = 600.0
"""How long an answer is waited for; the question after it may show that a server which hung is well again."""


def body(model: str) -> dict[str, Any]:
    """Return the request of one token, for /v1/chat/completions."""
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 1}


@dataclass(kw_only=True)
class Question:
    """At most one question at a time."""

    _thread: threading.Thread | None = None
    _asked: float = float("-inf")
    """When the last one was asked, by the monotonic clock."""

    @property
    def waits(self) -> bool:
        """Return whether a question has no answer yet, be it a refusal."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, send: Callable[[], None], *, every_s: float) -> None:
        """Send a question, unless one waits or the last one was asked less than `every_s` seconds ago.

        `send` returns once there is an answer or none can come, and handles its own errors.
        """
        now = time.monotonic()
        if self.waits or now - self._asked < every_s:
            return
        self._asked = now
        self._thread = threading.Thread(target=send, name="question", daemon=True)
        self._thread.start()
