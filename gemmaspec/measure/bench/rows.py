"""The rows of a result: the figures of one arm at one load, and how they compare with the arm without a draft."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]
_OF_ARM: Final = (
    *("arm", "patches", "attention_backend", "draft_backend", "graphs", "head_graphs", "images", "kv_cache_dtype"),
    *("linear_kernel", "sampling"),
)
"""Keys of a cell that describe its server and its requests."""
_AVERAGED: Final = ("tokens_per_second", "output_tokens_per_second", "step_ms", "acceptance_length")


def patch_set(row: Row) -> tuple[str, ...] | None:
    """Return the set of a row; None if it is not known. A row of an older gemmaspec, without the key, has none."""
    patches = row.get("patches", ())
    if patches is None:
        return None
    return tuple(sorted(map(str, patches)))


def said(row: Row) -> str:
    """Return the set for a table."""
    patches = patch_set(row)
    if patches is None:
        return "unknown"
    return " + ".join(patches) or "none"


def several(rows: Iterable[Row]) -> bool:
    """Return whether rows that draft were measured with different sets, or those that do not."""
    rows = list(rows)
    return any(len({patch_set(row) for row in rows if bool(row["k"]) is drafts}) > 1 for drafts in (True, False))


def nearest(row: Row, among: Sequence[Row]) -> Row | None:
    """Return the row whose set is most like that of another row: the same, else the one with the fewest others."""
    patches = set(patch_set(row) or ())
    return min(among, key=lambda other: len(patches ^ set(patch_set(other) or ())), default=None)


def alike(row: Row, other: Row) -> bool:
    """Return whether two rows have the same concurrency, and contexts that differ by at most a tenth."""
    near = abs(row["context"] - other["context"]) <= 0.1 * max(row["context"], other["context"])
    return bool(row["concurrency"] == other["concurrency"] and near)


def alone(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row without speculation to compare a row with: of several, that with the most similar patches."""
    return nearest(row, [base for base in rows if base["k"] == 0 and alike(base, row)])


def speedup(row: Row, rows: Sequence[Row]) -> float | None:
    """Return how many times as fast a row is as the one without speculation."""
    base = alone(row, rows) if row["k"] else None
    return row["tokens_per_second"] / base["tokens_per_second"] if base else None


def rows_of(cells: Iterable[Mapping[str, Any]], *, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per arm, concurrency and context: the medians over the rounds, as predict reads them.

    `common` describes the machine and its settings in every row. Cells with a steady machine take precedence.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        arm = cell.get("arm", (cell["method"], cell["k"]))
        groups.setdefault((arm, patch_set(cell), cell["concurrency"], cell["context"]), []).append(cell)
    return [_row(group, common) for group in groups.values()]


def _medians(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what half of the cells reached at most, figure by figure."""
    by_position = zip(*(cell["acceptance"] for cell in cells), strict=True)
    # an answer of one token has no time per token
    timed = [cell["tpot_ms"]["median"] for cell in cells if cell["tpot_ms"]]
    figures: dict[str, Any] = {"acceptance": [round(statistics.median(rates), 6) for rates in by_position]}
    for name in _AVERAGED:
        figures[name] = statistics.median(cell[name] for cell in cells)
    figures["ttft_ms"] = statistics.median(cell["ttft_ms"]["median"] for cell in cells)
    figures["tpot_ms"] = statistics.median(timed or [0.0])
    return figures


def _row(cells: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> dict[str, Any]:
    steady = [cell for cell in cells if cell["reference"]["steady"]]
    used = steady or list(cells)
    first = used[0]
    context = first["context"] or round(statistics.median(cell["prompt_tokens"] for cell in used))
    load = {"method": first["method"], "k": first["k"], "concurrency": first["concurrency"], "context": context}
    trust = {
        "spread": _spread([cell["tokens_per_second"] for cell in used]),
        "rounds": len(used),
        "rounds_measured": len(cells),
        "steady": bool(steady),
    }
    of_arm = {name: first[name] for name in _OF_ARM if name in first}
    of_run = {name: value for name, value in common.items() if name != "acceptance_asked"}
    row = load | _medians(used) | _answer(used) | trust | of_arm | of_run
    return _by_asked_lots(row, common.get("acceptance_asked") or ())


def _by_asked_lots(row: dict[str, Any], asked: Sequence[float]) -> dict[str, Any]:
    """Return a row whose tokens per second follow from the rates that the profile sets and from the measured step.

    Some hundred drafts are accepted by lot, and what they yield is 3 to 8 % off: chance of this run, and no speed. A
    row whose rate also holds prompts stays as it is.
    """
    k = row["k"]
    if not k or len(asked) < k or "answer_tokens" in row:
        return row
    drawn, expected = row["acceptance_length"], 1 + sum(asked[:k])
    return {
        **row,
        "acceptance": list(asked[:k]),
        "acceptance_length": expected,
        "acceptance_drawn": drawn,
        "tokens_per_second": expected * row["concurrency"] / row["step_ms"] * 1000,
    }


def _answer(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the tokens of an answer, unless its rate is of decoding alone."""
    if any(cell.get("prompts") == "apart" for cell in cells):
        return {}
    return {"answer_tokens": statistics.mean(cell["completion_tokens"] / cell["requests"] for cell in cells)}


def _spread(values: Sequence[float]) -> float | None:
    """Return the relative distance of the largest from the smallest; None for one round, which has none."""
    if len(values) > 1:
        return (max(values) - min(values)) / statistics.median(values)
    return None
