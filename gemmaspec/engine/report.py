"""The launcher's report as data, from whichever engine read it."""

from __future__ import annotations

import json
from typing import Any, Final

from gemmaspec.errors import GemmaspecError

MAX_REPORT: Final = 1024 * 1024
"""Bytes of a report; a longer one is refused."""


def parse_report(text: bytes) -> dict[str, Any]:
    """Return a report as data. Raise GemmaspecError when it is too long or no JSON object."""
    if len(text) > MAX_REPORT:
        raise GemmaspecError(f"the launcher's report is longer than {MAX_REPORT} bytes, it was not read")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GemmaspecError("the launcher's report is not a JSON object")
    return found
