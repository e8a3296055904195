"""What is said of a k that can be changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmaspec.live.live_k import InUse


def sentence(found: InUse) -> str:
    """Return the k in use, the k it was started with, and since when it is so."""
    off = "" if found.k else ": nothing is drafted"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.since))
    return f"{found.k} (started with {found.started_k}){off}, since {since}"
