"""The best k for each load, and the table of k (`speculative.k_by_requests`) that it gives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

GAIN: Final = 0.02
"""Relative gain at some load from which a table is worth its longer start."""

Speeds = Mapping[int, Mapping[int, float]]
"""Requests at once → k → tokens per second of all requests."""


def best_k(speeds: Speeds) -> dict[int, int]:
    """Return the fastest k at each load, 0 included."""
    return {load: max(rates, key=lambda k: rates[k]) for load, rates in sorted(speeds.items()) if rates}


def best_single(speeds: Speeds) -> int | None:
    """Return the k that drafts and is fastest over all loads, each of which counts the same; None without any."""
    if speeds:
        common = set.intersection(*({k for k in speed if k} for speed in speeds.values()))
    else:
        common = set()
    return max(common, key=lambda k: statistics.fmean(math.log(speed[k]) for speed in speeds.values()), default=None)


def k_table(speeds: Speeds, single: int) -> dict[int, int]:
    """Return the table that drafts another k than `single` at the loads where that is more than GAIN faster.

    Empty where there is no such load. A table of these has no 0: a draft that rests still reads every token, which
    took 5 to 6 % of a step (H200, vLLM 0.32.0, mtp).
    """
    table: dict[int, int] = {}
    for load, rates in sorted(speeds.items()):
        best = max((k for k in rates if k), key=lambda k: rates[k])
        if rates[best] > rates[single] * (1 + GAIN):
            k = best
        else:
            k = single
        if not table or k != list(table.values())[-1]:
            table[load if table else 1] = k
    if len(table) > 1:
        return table
    return {}


def speeds_of(cells: Iterable[tuple[int, int, float]]) -> dict[int, dict[int, float]]:
    """Return cells, each of requests at once, k and tokens per second, as speeds."""
    speeds: dict[int, dict[int, float]] = {}
    for load, k, rate in cells:
        speeds.setdefault(load, {})[k] = rate
    return speeds


def envelope_json(speeds: Speeds) -> dict[str, Any]:
    """Return the best k of each load, the best for all of them, and the table; null where one k is as good."""
    single = best_single(speeds)
    table = k_table(speeds, single) if single else {}
    return {"k_by_load": best_k(speeds), "best_k": single, "k_by_requests": table or None}


def table_line(speeds: Speeds) -> Iterator[str]:
    """Yield the line of a profile that a table takes, and what it gains; nothing where one k is as good."""
    single = best_single(speeds)
    table = k_table(speeds, single) if single else {}
    if single and table:
        gain, load = max((rates[_k_at(table, load)] / rates[single] - 1, load) for load, rates in speeds.items())
        shown = ", ".join(f"{start}: {k}" for start, k in table.items())
        yield f"k_by_requests: {{{shown}}}    # {gain:.0%} over k={single} at {load}; gemmaspec tune measures it"


def _k_at(table: Mapping[int, int], load: int) -> int:
    return next(k for start, k in sorted(table.items(), reverse=True) if start <= load)
