"""What the watch in a container asks of others: the server's counters, a token, and an address for its events."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from gemmaspec.core.live.sample import Sample, read_sample
from gemmaspec.look.sidecar.known import LONGEST_S, body
from gemmaspec.run.exchange import exchanged

LOOK_S: Final = 2.0
"""Seconds that a reading may take; the next one comes soon."""
_POST_S: Final = 10.0
_MAX_PAGE: Final = 8 * 1024 * 1024
"""Bytes of a /metrics page that are read; vLLM's has about 100 kB."""


class NoReading(Exception):
    """The server's counters cannot be read; the text says why."""


def read(address: str, *, key: str | None, model: str = "") -> Sample:
    """Return the counters of a server; where the page has rows of `model`, those alone. Raises NoReading."""
    try:
        status, body = _exchange(address, "GET", "/metrics", None, key=key, timeout_s=LOOK_S)
        if status != 200:
            raise NoReading(f"/metrics answers HTTP {status}")
        return read_sample(body.decode("utf-8", "replace"), at=time.monotonic(), model=model)
    except (OSError, http.client.HTTPException):
        raise NoReading("the server does not answer") from None
    except (ValueError, OverflowError, IndexError, KeyError):
        raise NoReading("the counters of /metrics cannot be read") from None


def ask(address: str, model: str, *, key: str | None) -> None:
    """Ask the server for one token, and wait for any answer, or for LONGEST_S seconds."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        _exchange(address, "POST", "/v1/chat/completions", json.dumps(body(model)), key=key, timeout_s=LONGEST_S)


def post(url: str, event: Mapping[str, Any]) -> str | None:
    """Post an event, and return what went wrong; only the host is named, since the path may be a secret.

    Redirects are not followed, and proxies of the environment are not used.
    """
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    try:
        status, _ = _exchange(url, "POST", path, json.dumps(event), key=None, timeout_s=_POST_S, most=0)
    except TimeoutError:
        return f"webhook at {parts.hostname}: no answer within {_POST_S:.0f} s"
    except (OSError, ValueError, http.client.HTTPException):
        return f"webhook at {parts.hostname}: cannot be reached"
    if 200 <= status < 300:
        return None
    return f"webhook at {parts.hostname}: HTTP {status}"


def _exchange(
    address: str, method: str, path: str, body: str | None, *, key: str | None, timeout_s: float, most: int = _MAX_PAGE
) -> tuple[int, bytes]:
    if body:
        headers = {"Content-Type": "application/json"}
    else:
        headers = {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    content = body.encode() if body else None
    return exchanged(address, path, method=method, body=content, headers=headers, timeout_s=timeout_s, most=most)
