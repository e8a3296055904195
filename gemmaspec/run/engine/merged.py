"""Several logs as one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

_MOST_WAITING: Final = 1000
"""Lines that a slow reader leaves unread before the logs' own readers wait."""


def merged(logs: Sequence[Callable[[], Iterator[str]]], *, follow: bool) -> Iterator[str]:
    """Yield the lines of each log after those of the one before it; with `follow`, all lines as they come."""
    if not follow:
        for log in logs:
            yield from log()
        return
    lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)

    def pump(log: Callable[[], Iterator[str]]) -> None:
        for line in log():
            lines.put(line)
        lines.put(None)

    for log in logs:
        threading.Thread(target=pump, args=(log,), name="gemmaspec-log", daemon=True).start()
    left = len(logs)
    while left:
        line = lines.get()
        if line is None:
            left -= 1
        else:
            yield line
