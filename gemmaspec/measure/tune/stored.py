"""What a tuning has tried, as a file: whole after every cell, and read again by --continue."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gemmaspec.core.errors import UsageError
from gemmaspec.measure.tune.arms import Field
from gemmaspec.measure.tune.choose import BestAtLoad, TuneChoice
from gemmaspec.measure.tune.next_arm import all_arms
from gemmaspec.measure.tune.trials import Tried

KIND: Final = "gemmaspec tune"
SCHEMA: Final = 1
MAX_BYTES: Final = 8 * 1024 * 1024


def tried_json(tried: Tried, field: Field) -> dict[str, Any]:
    """Return the arms and what was tried of them."""
    arms = [{"key": tried_arm.key, **asdict(tried_arm)} for tried_arm in all_arms(tried, field)]
    return {"arms": arms, "left_out": dict(field.left_out), "tried": asdict(tried)}


def choice_json(choice: TuneChoice | None) -> dict[str, Any] | None:
    """Return the answer, as far as there is one."""
    if choice is None:
        return None
    return {
        "arm": choice.arm.key,
        **asdict(choice.arm),
        "why": choice.why,
        "times": choice.worth.score,
        "k_by_load": [_load_json(load) for load in choice.loads],
    }


def _load_json(load: BestAtLoad) -> dict[str, Any]:
    return {
        "concurrency": load.concurrency,
        "k": load.k,
        "tokens_per_second": round(load.tokens_per_second, 3),
        "times": round(load.times, 4),
        "fastest": load.fastest.key,
        "fastest_times": round(load.fastest_times, 4),
    }


def parse(text: str, *, file: str) -> tuple[dict[str, Any], Tried]:
    """Return a stored tuning and what it tried. Raises UsageError for a file that tune did not write."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or (document.get("kind"), document.get("schema")) != (KIND, SCHEMA):
        raise UsageError(f"{file} is damaged, or another gemmaspec wrote it", hint="start again, without --continue")
    maps = all(isinstance(document.get(name), dict) for name in ("settings", "provenance"))
    try:
        tried = TypeAdapter(Tried).validate_python(document.get("tried"))
    except ValidationError:
        tried = None
    if tried is None or not maps or not isinstance(document.get("spent_s"), int | float):
        raise UsageError(f"{file} is damaged: what was tried cannot be read", hint="start again, without --continue")
    return document, tried
