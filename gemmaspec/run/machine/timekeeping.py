"""Whether this machine's clock is right: by the kernel, and by the date of a server's answer."""

from __future__ import annotations

import asyncio
import email.utils
import time
from dataclasses import dataclass
from typing import Final

from gemmaspec.run.models.access import is_offline


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Two readings of this machine's clocks, and one of another machine's."""

    now: float
    """Unix time."""
    step: float
    """Seconds by which the time of day moved more than the monotonic clock between the readings."""
    skew: float | None
    """Seconds by which this machine is ahead of a server; None if no server was reached."""
    against: str
    """The server, or why none was reached."""


_HTTP_S: Final = 5


def clock() -> Clock:
    """Return the current clocks; that of a server by the Date of its answer."""
    day, even = time.time(), time.monotonic()
    skew, against = _skew()
    step = (time.time() - day) - (time.monotonic() - even)
    return Clock(now=time.time(), step=step, skew=skew, against=against)


def _skew() -> tuple[float | None, str]:
    """Return how far this machine is ahead of the Hub and the source, or None and the reason."""
    import httpx
    from huggingface_hub import constants

    async def answered() -> httpx.Response:
        # The timeout of httpx begins anew with every byte.
        async with asyncio.timeout(_HTTP_S), httpx.AsyncClient() as client:
            return await client.head(constants.ENDPOINT)

    if is_offline():
        return None, "HF_HUB_OFFLINE is set"
    before = time.time()
    try:
        there = email.utils.parsedate_to_datetime(asyncio.run(answered()).headers["Date"]).timestamp()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, KeyError, ValueError, TypeError):
        return None, f"{constants.ENDPOINT} does not state the time"
    return (before + time.time()) / 2 - there, constants.ENDPOINT
