"""Requests at a given concurrency: each worker has one connection and sends the next request as one ends."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from gemmaspec.measure.stream import Broken, Stream, connection, streamed

_LOOK_S = 0.2


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
    run = _Run(base_url, bodies, timeout_s, api_key)
    workers = [
        threading.Thread(target=run.work, name=f"gemmaspec-load-{n}", daemon=True)
        for n in range(min(concurrency, len(bodies)))
    ]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(_LOOK_S)
            if run.failed:
                break
    finally:
        run.close()
    if run.failed:
        raise run.failed
    streams = tuple(one for one in run.streams if one)
    if len(streams) != len(bodies):
        raise Broken("a request was lost")
    began, ended = min(one.sent for one in streams), max(one.last for one in streams)
    return Load(streams=streams, wall=ended - began, idle=run.idle)


class _Run:
    """The state that the workers share."""

    def __init__(self, base_url: str, bodies: Sequence[bytes], timeout_s: float, api_key: str | None) -> None:
        self._base_url, self._bodies, self._timeout_s, self._api_key = base_url, bodies, timeout_s, api_key
        self._next = iter(range(len(bodies)))
        self._lock = threading.Lock()
        self._clients: list[httpx.Client] = []
        self._origin = time.perf_counter()
        self.streams: list[Stream | None] = [None] * len(bodies)
        self.idle = 0.0
        self.failed: BaseException | None = None

    def work(self) -> None:
        """Run one worker until the last request or the first failure."""
        idle, ended = 0.0, None
        try:
            with connection(self._base_url, timeout_s=self._timeout_s, api_key=self._api_key) as client:
                self._clients.append(client)
                while (number := self._take()) is not None and not self.failed:
                    found = streamed(client, self._bodies[number], origin=self._origin)
                    idle += found.sent - ended if ended is not None else 0.0
                    ended = found.ended
                    self.streams[number] = found
        except BaseException as error:  # handed to the caller's thread, which raises it
            with self._lock:
                self.failed = self.failed or error
        with self._lock:
            self.idle += idle

    def close(self) -> None:
        """Abort the running requests."""
        self.failed = self.failed or (None if all(self.streams) else Broken("interrupted"))
        for client in list(self._clients):
            with contextlib.suppress(Exception):
                client.close()

    def _take(self) -> int | None:
        with self._lock:
            return next(self._next, None)
