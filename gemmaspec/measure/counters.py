"""A server's counters before and after what is measured."""

from __future__ import annotations

import time
from typing import Final

from gemmaspec.core.live.sample import Counters, Sample
from gemmaspec.measure.stream import Broken
from gemmaspec.run.engine.server import Server
from gemmaspec.run.ready.first_request import UnreadableMetrics, read_metrics

_SETTLE_S: Final = 3.0
_POLL_S: Final = 0.03


def read_counters(server: Server, *, timeout_s: float, api_key: str | None) -> Counters:
    """Return the server's counters. Raises Broken if it does not report them, and what `exchange` raises."""
    return Counters.of(_sample(server, timeout_s=timeout_s, api_key=api_key))


def settled(server: Server, before: Counters, *, tokens: int, timeout_s: float, api_key: str | None) -> Counters:
    """Return the increase since `before`, once the server has counted `tokens` generated tokens or stops counting.

    vLLM counts a step shortly after it has sent it. Raises what `read_counters` raises, and Broken if the server was
    restarted.
    """
    until = time.monotonic() + _SETTLE_S
    while True:
        added = read_counters(server, timeout_s=timeout_s, api_key=api_key).since(before)
        if added is None:
            raise Broken("the server's counters decreased, because it was restarted during a cell")
        if added.generated >= tokens or time.monotonic() > until:
            return added
        time.sleep(_POLL_S)


def speculates(server: Server, *, timeout_s: float, api_key: str | None) -> bool:
    """Return whether the server has a draft. Raises Broken when it does not say, and what `exchange` raises."""
    return _sample(server, timeout_s=timeout_s, api_key=api_key).counts_drafts


def _sample(server: Server, *, timeout_s: float, api_key: str | None) -> Sample:
    try:
        return read_metrics(server, timeout_s=timeout_s, api_key=api_key)
    except UnreadableMetrics as error:
        raise Broken(error.message) from None
