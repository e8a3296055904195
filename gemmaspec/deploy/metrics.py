"""One reading of a running server's counters, for `top` and `watch`."""

from __future__ import annotations

import time
from typing import Final

from gemmaspec.engine.server import Server
from gemmaspec.errors import StartFailed
from gemmaspec.live.sample import Sample, read_sample
from gemmaspec.ready.http import exchange
from gemmaspec.ready.probe import api_key_for

_TIMEOUT_S: Final = 2.0


def read(server: Server) -> Sample:
    """Return the current counters. Raises StartFailed or TimedOut if the server does not provide them."""
    reply = exchange(server, "/metrics", timeout_s=_TIMEOUT_S, api_key=api_key_for(server))
    if reply.status != 200:
        raise StartFailed(f"/metrics answers HTTP {reply.status}")
    try:
        return read_sample(reply.body.decode("utf-8", "replace"), at=time.monotonic())
    except (ValueError, OverflowError, IndexError, KeyError):
        raise StartFailed("cannot read the counters of /metrics") from None
