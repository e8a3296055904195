"""A result of bench as others can check it: nothing but what was measured, and on what. Pure.

What is shared is a list of what may be in it. Paths, addresses, host names and overrides are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gemmaspec.errors import UsageError

KIND: Final = "gemmaspec share"
_MOST: Final = 2**22
_ROW: Final = (
    "method", "k", "concurrency", "context", "acceptance", "acceptance_length", "tokens_per_second", "step_ms",
    "ttft_ms", "spread", "rounds", "rounds_measured", "steady", "patches", "attention_backend", "compile", "vllm",
)  # fmt: skip
_SETTINGS: Final = (
    "categories", "each", "max_tokens", "ignore_eos", "temperature", "rounds", "any_text", "prompts_sha256",
)  # fmt: skip
_PROVENANCE: Final = ("machine", "gpu", "driver", "cuda")
_LOCK: Final = (
    "image.name", "image.digest", "target.model", "target.revision", "draft.model", "draft.revision", "plan",
    "versions.vllm", "versions.torch", "versions.transformers",
)  # fmt: skip
_OVER: Final = 1.02
"""How far a figure may be above its bound, for rounding."""


def shared(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent of a result."""
    arms = document["provenance"].get("arms") or {}
    locks = [one["lock"] for one in arms.values() if isinstance(one, dict) and isinstance(one.get("lock"), dict)]
    if any(isinstance(one, dict) and one.get("url") for one in arms.values()):
        raise UsageError(
            "this result is of a server by its address, so what ran there is not known", hint="gemmaspec bench NAME"
        )
    return {
        "schema": 1,
        "kind": KIND,
        "complete": bool(document.get("complete")),
        "date": str(document.get("date", ""))[:10],
        "gemmaspec": document.get("gemmaspec"),
        "profile": document["profile"],
        "settings": _only(document["settings"], _SETTINGS),
        "machine": _only(document["provenance"], _PROVENANCE),
        "runs": {key: value for key, value in (locks[0] if locks else {}).items() if key in _LOCK and _public(value)},
        "acceptance_by_category": _categories(document["cells"]),
        "rows": [_only(row, _ROW) for row in document["rows"]],
    }


def _public(value: object) -> bool:
    """Return whether a value names something public: a model in a folder has a path."""
    return not str(value).startswith(("/", "~", ".", "state:"))


def _only(given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}


def _categories(cells: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the accepted tokens by kind of prompt, for each arm with one request at once."""
    return {
        f"{one['method']} k={one['k']}": dict(one["acceptance_by_category"])
        for one in cells
        if one["concurrency"] == 1 and one["k"] and one.get("acceptance_by_category")
    }


def parse(text: str, *, file: str) -> dict[str, Any]:
    """Return what somebody shared. Raises UsageError for anything else."""
    try:
        found = json.loads(text) if len(text) <= _MOST else None
    except (ValueError, RecursionError):
        found = None
    parts = (("rows", list), ("settings", dict), ("machine", dict), ("runs", dict), ("profile", str), ("date", str))
    if not isinstance(found, dict) or found.get("kind") != KIND or found.get("schema") != 1:
        raise UsageError(f"{file}: not what gemmaspec share writes")
    for name, kind in parts:
        if not isinstance(found.get(name), kind):
            raise UsageError(f"{file}: {name} is missing")
    return found


def doubts(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield every reason why a shared result cannot stand as a figure."""
    rows = [row for row in found["rows"] if isinstance(row, dict)]
    if len(rows) != len(found["rows"]) or not rows:
        yield "there are no rows, or one is not a map"
        return
    if not found.get("complete"):
        yield "the run is not complete"
    if found["settings"].get("any_text"):
        yield "any text was accepted, as with dummy weights"
    if found["settings"].get("ignore_eos"):
        yield "answers were cut at a fixed length (ignore_eos), which overstates acceptance"
    if not found["machine"].get("gpu"):
        yield "the GPU is not known"
    for key in ("target.model", "versions.vllm"):
        if not found["runs"].get(key):
            yield f"{key} is not known"
    if not any(row.get("k") == 0 for row in rows):
        yield "nothing was measured without speculation in the same run"
    for number, row in enumerate(rows, 1):
        yield from (f"row {number}: {why}" for why in _doubts_of(row))


def _doubts_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what cannot be true of a row: more accepted than drafted, or more tokens than its steps give."""
    try:
        k, at_once = int(row["k"]), int(row["concurrency"])
        speed, step, length = (float(row[key]) for key in ("tokens_per_second", "step_ms", "acceptance_length"))
    except (KeyError, TypeError, ValueError, OverflowError):
        yield "a figure is missing"
        return
    if not (speed > 0 and step > 0 and at_once > 0 and k >= 0):
        yield "a figure is not positive"
        return
    if not 1 <= length <= (k + 1) * _OVER:
        yield f"an acceptance length of {length:.2f} with k {k}, where {k + 1} is the most"
    bound = (k + 1) * at_once / step * 1000
    if speed > bound * _OVER:
        yield f"{speed:.1f} tokens/s, where steps of {step:.1f} ms with k {k} give {bound:.1f} at most"
    if not row.get("steady", False):
        yield "the machine was not steady (the reference step moved)"


def markdown(found: Mapping[str, Any]) -> str:
    """Return what is sent as text for a person: the title, the conditions, a row for each cell, and the JSON."""
    machine, runs = found["machine"], found["runs"]
    gpu = machine.get("gpu")
    shown = ", ".join(map(str, gpu)) if isinstance(gpu, list) else str(gpu or machine.get("machine") or "not known")
    facts = {
        "machine": shown,
        "driver": machine.get("driver"),
        "target": runs.get("target.model"),
        "draft": runs.get("draft.model"),
        "image": f"{runs['image.name']} {runs.get('image.digest', '')}" if "image.name" in runs else None,
        "vLLM": runs.get("versions.vllm"),
        "prompts": f"sha256 {str(found['settings'].get('prompts_sha256'))[:12]}",
        "answers": f"up to {found['settings'].get('max_tokens')} tokens, temperature "
        f"{found['settings'].get('temperature')}",
    }
    lines = [f"# {found['profile']} on {shown}, {found['date']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    lines += ["", "| method | k | requests | context | tok/s | spread | E(k) | ms/step | patches |", f"|{' --- |' * 9}"]
    lines += [_line(row) for row in found["rows"]]
    for arm, kinds in found.get("acceptance_by_category", {}).items():
        said = ", ".join(f"{kind} {1 + sum(rates):.2f}" for kind, rates in kinds.items() if isinstance(rates, list))
        lines += ["", f"Acceptance length by kind of prompt, {arm}: {said}"] if said else []
    whole = json.dumps(found, ensure_ascii=False)
    return "\n".join(
        [*lines, "", "<details><summary>data</summary>", "", "```json", whole, "```", "", "</details>", ""]
    )


def _line(row: Mapping[str, Any]) -> str:
    spread = row.get("spread")
    patches = " + ".join(row.get("patches") or ()) or "-"
    cells = (
        row["method"], row["k"], row["concurrency"], row["context"], f"{row['tokens_per_second']:.1f}",
        "-" if spread is None else f"{spread:.1%}", f"{row['acceptance_length']:.2f}", f"{row['step_ms']:.1f}", patches,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"
