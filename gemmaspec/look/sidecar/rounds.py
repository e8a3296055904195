"""The rounds of a watch, on the host as in a container: look, say what happened, keep what is known, wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

_KEEP_EVERY_S: Final = 10.0
"""Seconds between two times that what is known is written down, if nothing happens."""
_ZERO: Final = time.time() - time.monotonic()


def steady_now() -> float:
    """Return the seconds since 1970 on a clock that nobody sets while this process runs."""
    return round(_ZERO + time.monotonic(), 3)


@dataclass(frozen=True, kw_only=True)
class WatchLine:
    """One line of the log of a watch. Times are in UTC."""

    at: str
    stack: str
    what: str
    """watches, begins, ends, unreachable, stopped, answers, drained, restarted, off, failed, left, repaired, hook."""
    fault: str | None = None
    reason: str = ""


def watch_line(stack: str, what: str, *, fault: str | None = None, reason: str = "") -> WatchLine:
    """Return a line of the log, of now."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017 - Python 3.10 has no UTC
    return WatchLine(at=now, stack=stack, what=what, fault=fault, reason=reason)


@dataclass(kw_only=True)
class Known:
    """What a watch knows of the server or the router that it looks at."""

    since: dict[str, float] = field(default_factory=dict)
    """When each fault that is active began, in seconds since 1970."""
    last: str = ""
    """The last action, and why it was done or left undone."""
    kept_at: float = float("-inf")
    """When this was written down last, by the monotonic clock."""
    clock: Callable[[], float] = steady_now
    """What says how late it is, in seconds since 1970."""

    def mark(self, fault: str, *, begins: bool) -> None:
        """Note that a fault begins or ends now."""
        if begins:
            self.since[fault] = self.clock()
        else:
            self.since.pop(fault, None)

    def is_due(self, *, happened: bool) -> bool:
        """Return whether what is known is to be written down after a look."""
        now = time.monotonic()
        due = happened or now - self.kept_at >= _KEEP_EVERY_S
        self.kept_at = now if due else self.kept_at
        return due


def one_round(
    known: Known,
    stack: str,
    *,
    problems: Iterable[str],
    look: Iterable[WatchLine],
    keep: Callable[[], str],
) -> Iterator[WatchLine]:
    """Yield what a look logs, and keep what is known if something happened or it was not kept for a while.

    `problems` are what went wrong while receivers were told. `keep` returns why it could not write, "" if it could or
    if that is not to be logged.
    """
    for wrong in problems:
        yield watch_line(stack, "hook", reason=wrong)
    happened = False
    for line in look:
        happened = True
        yield line
    if known.is_due(happened=happened) and (wrong := keep()):
        yield watch_line(stack, "failed", reason=wrong)


def fault_event(stack: str, fault: str, *, begins: bool, reason: str) -> Mapping[str, Any]:
    """Return what a receiver is sent about a fault."""
    return {"stack": stack, "kind": fault, "begins": begins, "reason": reason}


def go_round(
    look: Callable[[], Iterable[WatchLine]],
    say: Callable[[WatchLine], None],
    *,
    interval_s: float,
    over: threading.Event,
) -> None:
    """Look once in each interval until it is over; a look that takes longer delays the next one."""
    while not over.is_set():
        began = time.monotonic()
        for line in look():
            say(line)
        over.wait(max(0.0, interval_s - (time.monotonic() - began)))
