"""What a tuning has tried, as a file: whole after every cell, and read again by --continue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gemmaspec.errors import UsageError
from gemmaspec.tune.arms import Field
from gemmaspec.tune.choose import Choice
from gemmaspec.tune.next_arm import all_arms
from gemmaspec.tune.tried import Tried

KIND: Final = "gemmaspec tune"
SCHEMA: Final = 1
MAX_BYTES: Final = 8 * 1024 * 1024


def tried_json(tried: Tried, field: Field) -> dict[str, Any]:
    """Return the arms and what was tried of them."""
    arms = [{"key": one.key, **asdict(one)} for one in all_arms(tried, field)]
    return {"arms": arms, "left_out": dict(field.left_out), "tried": asdict(tried)}


def choice_json(choice: Choice | None) -> dict[str, Any] | None:
    """Return the answer, as far as there is one."""
    if choice is None:
        return None
    return {
        "arm": choice.arm.key,
        **asdict(choice.arm),
        "why": choice.why,
        "times": choice.worth.score,
        "k_by_load": [
            {
                "concurrency": one.concurrency,
                "k": one.k,
                "tokens_per_second": round(one.tokens_per_second, 3),
                "times": round(one.times, 4),
                "fastest": one.fastest.key,
                "fastest_times": round(one.fastest_times, 4),
            }
            for one in choice.loads
        ],
    }


def text_of(document: Mapping[str, Any]) -> str:
    """Return the document as a file holds it."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def parse(text: str, *, file: str) -> tuple[dict[str, Any], Tried]:
    """Return a stored tuning and what it tried. Raises UsageError for a file that tune did not write."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (found.get("kind"), found.get("schema")) != (KIND, SCHEMA):
        raise UsageError(f"{file} is damaged, or another gemmaspec wrote it", hint="start again, without --continue")
    maps = all(isinstance(found.get(name), dict) for name in ("settings", "provenance"))
    try:
        tried = TypeAdapter(Tried).validate_python(found.get("tried"))
    except ValidationError:
        tried = None
    if tried is None or not maps or not isinstance(found.get("spent_s"), int | float):
        raise UsageError(f"{file} is damaged: what was tried cannot be read", hint="start again, without --continue")
    return found, tried
