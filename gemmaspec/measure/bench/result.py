"""The result of `bench`: one JSON document, complete after every cell, which predict, compare and --resume read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.rows import read_text, result_file

KIND: Final = "gemmaspec bench"
SCHEMA: Final = 1
MAX_BYTES: Final = 256 * 1024 * 1024


def spread_of(row: Mapping[str, Any]) -> float | None:
    """Return the spread of a row's rounds; None where only one counts."""
    return None if row.get("rounds") == 1 else row["spread"]


def mark_of(row: Mapping[str, Any]) -> str:
    """Return a row's mark: "!" if no round was steady, "1 of 2 rounds" if only some were, else ""."""
    if not row["steady"]:
        return "!"
    measured, rounds = row.get("rounds_measured"), row.get("rounds")
    if measured and rounds != measured:
        return f"{rounds} of {measured} rounds"
    return ""


def text_of(document: Mapping[str, Any]) -> str:
    """Return a document of bench or tune as its file holds it."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


_NUMBER: Final = (int, float)
_MOST: Final = 1e15
"""No figure of a result is larger."""
_ROW: Final[Mapping[str, tuple[type, ...]]] = {
    "method": (str,),
    "k": (int,),
    "concurrency": (int,),
    "context": (int,),
    "acceptance": (list,),
    "tokens_per_second": _NUMBER,
    "step_ms": _NUMBER,
    "acceptance_length": _NUMBER,
}
"""What a row of either list holds."""
_SUMMARY: Final[Mapping[str, tuple[type, ...]]] = {
    **_ROW,
    "spread": (*_NUMBER, type(None)),
    "ttft_ms": _NUMBER,
    "steady": (bool,),
}
_CELL: Final[Mapping[str, tuple[type, ...]]] = {
    **_ROW,
    "key": (str,),
    "round": (int,),
    "context": (int, type(None)),
    "output_tokens_per_second": _NUMBER,
    "prompt_tokens": _NUMBER,
    "foreign_tokens": (int,),
    "acceptance_by_category": (dict,),
    "reference": (dict,),
    "ttft_ms": (dict,),
    "tpot_ms": (dict, type(None)),
}


def parse(text: str, *, file: str) -> dict[str, Any]:
    """Return a stored result. Raises UsageError for an invalid one or another schema."""
    if len(text) > MAX_BYTES:
        raise UsageError(f"{file}: is larger than {MAX_BYTES // 2**20} MiB, too large for a result")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{file}: not JSON") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f"{file}: not a result of gemmaspec bench")
    if document.get("schema") != SCHEMA:
        raise UsageError(f"{file}: has the schema {document.get('schema')!r}, and {SCHEMA} is read")
    for name, kind in (("rows", list), ("cells", list), ("settings", dict), ("provenance", dict), ("profile", str)):
        if not isinstance(document.get(name), kind):
            raise UsageError(f"{file}: {name} is missing")
    for name, keys in (("rows", _SUMMARY), ("cells", _CELL)):
        for number, entry in enumerate(document[name], 1):
            _check(entry, keys, f"{file}: {name}, number {number}")
    if not isinstance(document["provenance"].get("arms") or {}, dict):
        raise UsageError(f"{file}: provenance.arms must be a map")
    for cell in document["cells"]:
        if "steady" not in cell["reference"] or "median" not in cell["ttft_ms"]:
            raise UsageError(f"{file}: a cell is incomplete")
    return document


def _check(entry: Any, keys: Mapping[str, tuple[type, ...]], place: str) -> None:
    """Raise UsageError for a row with missing or invalid values."""
    if not isinstance(entry, dict):
        raise UsageError(f"{place} must be a map of keys")
    for name, kinds in keys.items():
        value = entry.get(name, ...)
        whole = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if not whole or (isinstance(value, int | float) and not abs(value) < _MOST):
            raise UsageError(f"{place}: {name} is missing or not what bench writes")
    if entry["tokens_per_second"] <= 0 or entry["concurrency"] < 1 or not 0 <= entry["k"] <= 1024:
        raise UsageError(f"{place}: contains an impossible number")
    for rate in entry["acceptance"]:
        if not isinstance(rate, int | float) or not abs(rate) < _MOST:
            raise UsageError(f"{place}: acceptance is missing or not what bench writes")


def read_result(path: Path) -> dict[str, Any]:
    """Return a result: a file, or a folder that bench wrote. Raises UsageError for anything else."""
    return parse(read_text(path, limit=MAX_BYTES), file=str(result_file(path)))
