"""What the processes of a server attest of their patched functions: the verdict of launcher/attest_sum.py, read.

Anything in the server could have written the file, so it is hostile input. What is missing is never fine: a server
with patches and without a verdict is not attested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.run.engine.lines import clean

FILE: Final = "attested.json"  # in the run folder, next to the launcher's report
MAX_ATTESTED: Final = 4 * 1024 * 1024  # bytes
NOBODY: Final = "no process has attested its patched functions"
OTHER_VERSION: Final = "another version of gemmaspec started it, and a restart attests it again"
_SCHEMA: Final = 2
_STATES: Final = ("attested", "different", "not attested")


def parse_attested(text: bytes | None) -> dict[str, Any]:
    """Return the verdict with only what belongs into it; nothing attested where it is missing or invalid."""
    problem = NOBODY
    try:
        if text and len(text) <= MAX_ATTESTED:
            document = json.loads(text)
            if type(document["schema"]) is int and document["schema"] != _SCHEMA:
                problem = OTHER_VERSION
            elif document["state"] in _STATES and document["processes"]:
                return {
                    "state": document["state"],
                    "text": _text(document["text"]),
                    "problems": list(map(_text, document["problems"])),
                    "notes": list(map(_text, document["notes"])),
                    "processes": list(map(_process, document["processes"])),
                }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        pass
    nothing: dict[str, Any] = {"problems": [problem], "notes": [], "processes": []}
    return {"state": "not attested", "text": f"NOT ATTESTED: {problem}", **nothing}


def _process(entry: Mapping[str, Any]) -> dict[str, Any]:
    lists = {name: list(map(_text, entry[name])) for name in ("roles", "functions", "different", "optional", "wrapped")}
    return {"pid": int(entry["pid"]), "title": _text(entry["title"]), "cost_ms": float(entry["cost_ms"]), **lists}


def _text(value: object) -> str:
    return clean(str(value))[:500]


def with_attested(report: dict[str, Any], text: bytes | None) -> dict[str, Any]:
    """Return a report with what the processes attest, if the launcher gave them something to attest."""
    if isinstance(report.get("attestation"), dict):
        return {**report, "attested": parse_attested(text)}
    return report
