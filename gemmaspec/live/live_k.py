"""k of a running server: what a person asks for, and what the server's scheduler has written down.

The other side is gemmaspec/launcher/live_k.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.errors import UsageError

MOST_BYTES: Final = 4096
_MOST_K: Final = 2**16
_MOST_SECONDS: Final = 1e12


@dataclass(frozen=True, kw_only=True)
class InUse:
    """The k that a server drafts with, as its scheduler says."""

    started_k: int
    """The k that it was started with, and the largest that it can have."""
    k: int
    """Tokens that it drafts before each step; 0 for none."""
    id: str
    """The request that it obeys; "" while it runs as it was started."""
    since: float
    """Seconds since 1970, by the server's clock."""


def parse_in_use(data: bytes | None) -> InUse | None:
    """Return what a scheduler has written down; None when it is missing, or is not what one writes."""
    try:
        found = json.loads(data[: MOST_BYTES + 1]) if data else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    started: Any
    k: Any
    started, k, request, since = (found.get(key) for key in ("started_k", "k", "id", "since"))
    numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in (started, k))
    if not (numbers and isinstance(request, str) and isinstance(since, int | float)):
        return None
    if not (0 <= k <= started <= _MOST_K and 0 <= since < _MOST_SECONDS):
        return None
    return InUse(started_k=started, k=k, id=request, since=float(since))


def control_text(k: int, request: str) -> str:
    """Return the file that asks for `k`."""
    return json.dumps({"k": k, "id": request}) + "\n"


def wished_k(text: str, name: str, *, started_k: int) -> int:
    """Return the k that "off", "auto" or a number asks for. Raises UsageError for anything else.

    `auto` is the k that the server was started with. A k for each load would be chosen here.
    """
    if text == "off":
        return 0
    if text == "auto":
        return started_k
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise UsageError(
            f"k is off, auto or a whole number from 0 to {started_k}; not {text!r}", hint=f"gemmaspec k {name} auto"
        )
    if int(text) > started_k:
        raise UsageError(
            f"{name} was started with k={started_k} and cannot draft {int(text)} tokens",
            hint=f"gemmaspec restart {name} --set speculative.num_speculative_tokens={int(text)}",
        )
    return int(text)
