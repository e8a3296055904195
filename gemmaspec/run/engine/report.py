"""The launcher's report as data, read by either engine."""

from __future__ import annotations

import json
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError

MAX_REPORT: Final = 1024 * 1024
"""Maximum bytes of a report."""


def parse_report(text: bytes) -> dict[str, Any]:
    """Return a report as data. Raise GemmaspecError if it is too long or not a JSON object."""
    if len(text) > MAX_REPORT:
        raise GemmaspecError(f"cannot read the launcher's report: longer than {MAX_REPORT} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise GemmaspecError("cannot read the launcher's report: not a JSON object")
    return document
