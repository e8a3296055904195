"""A running server's /metrics, read in this one place: for the first request, `status`, `top`, `watch` and `bench`."""

from __future__ import annotations

import time
from typing import Final

from gemmaspec.engine.http import exchange
from gemmaspec.engine.server import Server
from gemmaspec.errors import StartFailed
from gemmaspec.live.sample import Sample, read_sample

LOOK_S: Final = 2.0
"""Seconds that a command waits which reads again soon."""


class UnreadableMetrics(StartFailed):
    """The server answers /metrics with something else than vLLM's counters."""


def read_metrics(server: Server, *, timeout_s: float, api_key: str | None) -> Sample:
    """Return the counters of now. Raises UnreadableMetrics, and what `exchange` raises."""
    reply = exchange(server.base_url, "/metrics", timeout_s=timeout_s, api_key=api_key)
    if reply.status != 200:
        raise UnreadableMetrics(f"/metrics answers HTTP {reply.status}")
    try:
        return read_sample(reply.body.decode("utf-8", "replace"), at=time.monotonic())
    except (ValueError, OverflowError, IndexError, KeyError):
        raise UnreadableMetrics("the counters of /metrics cannot be read") from None
