"""Requests at a given concurrency: each worker sends the next request as one ends."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final, Generic, TypeVar

from gemmaspec.measure.stream import Broken, Stream, streamed
from gemmaspec.run.engine.http import ChatClient

_LOOK_S: Final = 0.2
AT_ONCE: Final = 16
"""Servers that are looked at together, so that one which does not answer holds up none."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Load:
    """The result of a run: `streams` in the order of its requests, times relative to the run's start."""

    streams: tuple[Stream, ...]
    wall: float
    """Seconds from the first request to the last token."""
    idle: float
    """Seconds between two requests of one worker, summed over the workers: the client's own overhead."""


def run_load(
    base_url: str, bodies: Sequence[bytes], *, concurrency: int, timeout_s: float, api_key: str | None
) -> Load:
    """Send all requests, `concurrency` at once, and wait for them.

    Raises Broken or UsageError of the first failed request and aborts the others. Ctrl-C aborts all.
    """
    chat, origin = ChatClient(base_url, api_key), time.perf_counter()

    def send(body: bytes) -> tuple[int, Stream]:
        return threading.get_ident(), streamed(chat, body, origin=origin, timeout_s=timeout_s)

    done = together([partial(send, body) for body in bodies], at_once=concurrency, abort=chat.abort)
    by_worker: dict[int, list[Stream]] = defaultdict(list)
    for worker, stream in done:
        by_worker[worker].append(stream)
    idle = 0.0
    for of_one in by_worker.values():
        idle += sum(later.sent - earlier.ended for earlier, later in pairwise(of_one))
    streams = tuple(stream for _, stream in done)
    wall = max(stream.last for stream in streams) - min(stream.sent for stream in streams)
    return Load(streams=streams, wall=wall, idle=idle)


def together(work: Sequence[Callable[[], _T]], *, at_once: int, abort: Callable[[], None] = lambda: None) -> list[_T]:
    """Do everything in threads, `at_once` at a time, and return the results in order.

    Raises what the first one that failed raised. That, or Ctrl-C, calls `abort`, which ends what is under way.
    """
    run = _Together(work)
    workers = []
    for number in range(min(at_once, len(work))):
        workers.append(threading.Thread(target=run.work, name=f"gemmaspec-load-{number}", daemon=True))
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) and not run.failed:
            for worker in workers:
                worker.join(_LOOK_S)
    except BaseException:
        run.failed = run.failed or Broken("interrupted")
        abort()
        raise
    if run.failed:
        abort()
        raise run.failed
    return [run.results[place] for place in range(len(work))]


@dataclass
class _Together(Generic[_T]):
    """The state that the workers share."""

    todo: Sequence[Callable[[], _T]]
    results: dict[int, _T] = field(default_factory=dict)
    failed: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: int = 0

    def work(self) -> None:
        """Do one after another until all are taken or one has failed."""
        try:
            while (place := self._take()) is not None:
                self.results[place] = self.todo[place]()
        except BaseException as error:  # handed to the caller's thread, which raises it
            with self._lock:
                self.failed = self.failed or error

    def _take(self) -> int | None:
        with self._lock:
            place, self._begun = self._begun, self._begun + 1
        if self.failed or place >= len(self.todo):
            return None
        return place
