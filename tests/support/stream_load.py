"""A constant load of streamed requests, and what became of each: for replicas that are changed or killed meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import httpx

Fate = Literal["whole", "cut", "refused"]
"""whole: streamed to [DONE]. cut: ended after its first token. refused: ended before it."""


@dataclass
class Load:
    """What became of the requests so far."""

    fates: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    """The longest wait for a first token."""
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, fate: Fate, reason: str, first_s: float | None) -> None:
        """Count one request."""
        with self._lock:
            self.fates[fate] += 1
            self.longest_s = max(self.longest_s, first_s or 0.0)
            if reason:
                self.reasons[f"{fate}: {reason}"] += 1

    def __str__(self) -> str:
        counts = ", ".join(f"{self.fates[fate]} {fate}" for fate in ("whole", "cut", "refused"))
        return f"{self.fates.total()} requests: {counts}; longest wait for a first token {self.longest_s:.2f} s"


@contextmanager
def load(
    base_url: str, model: str, *, clients: int, tokens: int, key: str | None = None, pause_s: float = 0
) -> Iterator[Load]:
    """Keep this many streamed requests running while the body runs, then let the last ones end.

    A client waits `pause_s` between two requests.
    """
    found = Load()
    arguments = (found, base_url, model, tokens, key, pause_s)
    threads = [threading.Thread(target=_client, args=(*arguments, number), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.stop.set()
        for thread in threads:
            thread.join(timeout=120)


def _client(found: Load, base_url: str, model: str, tokens: int, key: str | None, pause_s: float, number: int) -> None:
    headers = {"X-Session-ID": f"client-{number}", **({"Authorization": f"Bearer {key}"} if key else {})}
    with httpx.Client(timeout=120, trust_env=False, headers=headers) as client:
        while not found.stop.is_set():
            found.count(*_ask(client, base_url, model, tokens, number))
            found.stop.wait(pause_s)


def _ask(client: httpx.Client, base_url: str, model: str, tokens: int, number: int) -> tuple[Fate, str, float | None]:
    question = {"role": "user", "content": f"Client {number}: count from one."}
    body = {"model": model, "messages": [question], "max_tokens": tokens, "stream": True, "temperature": 0}
    began, first = time.monotonic(), None
    try:
        with client.stream("POST", f"{base_url}/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                return "refused", f"HTTP {answer.status_code} {answer.read().decode(errors='replace')[:120]}", None
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return "whole", "", first
                if line.startswith("data: ") and "error" in (told := json.loads(line.removeprefix("data: "))):
                    return ("cut" if first else "refused"), str(told["error"])[:120], first
                if line.startswith("data: ") and first is None:
                    first = time.monotonic() - began
    except httpx.HTTPError as error:
        return ("cut" if first else "refused"), f"{type(error).__name__}: {error}"[:120], first
    return ("cut" if first else "refused"), "the stream ended without [DONE]", first
