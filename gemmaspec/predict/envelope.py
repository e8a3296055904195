"""The best k for each load, and the table of k (`speculative.k_by_requests`) that it gives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import mul
from typing import Any, Final

GAIN: Final = 0.02
"""Relative gain at some load from which a table is worth its longer start."""

Speeds = Mapping[int, Mapping[int, float]]
"""Requests at once → k → tokens per second of all requests."""


def best_k(speeds: Speeds) -> dict[int, int]:
    """Return the fastest k at each load, 0 included."""
    return {load: max(own, key=lambda k: own[k]) for load, own in sorted(speeds.items()) if own}


def best_single(speeds: Speeds) -> int | None:
    """Return the k that drafts and is fastest over all loads, each of which counts the same; None without any."""
    common = set.intersection(*({k for k in own if k} for own in speeds.values())) if speeds else set()
    return max(common, key=lambda k: statistics.fmean(math.log(own[k]) for own in speeds.values()), default=None)


def k_table(speeds: Speeds, single: int) -> dict[int, int]:
    """Return the table that drafts another k than `single` at the loads where that is more than GAIN faster.

    Empty where there is no such load. A table of these has no 0: a draft that rests still reads every token, which
    took 5 to 6 % of a step (H200, vLLM 0.32.0, mtp).
    """
    found: dict[int, int] = {}
    for load, own in sorted(speeds.items()):
        best = max((k for k in own if k), key=lambda k: own[k])
        k = best if own[best] > own[single] * (1 + GAIN) else single
        if not found or k != list(found.values())[-1]:
            found[load if found else 1] = k
    return found if len(found) > 1 else {}


def speeds_of(cells: Iterable[tuple[int, int, float]]) -> dict[int, dict[int, float]]:
    """Return cells, each of requests at once, k and tokens per second, as speeds."""
    found: dict[int, dict[int, float]] = {}
    for load, k, rate in cells:
        found.setdefault(load, {})[k] = rate
    return found


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
        gain, load = max((own[_at(table, load)] / own[single] - 1, load) for load, own in speeds.items())
        said = ", ".join(f"{start}: {k}" for start, k in table.items())
        yield f"k_by_requests: {{{said}}}    # {gain:.0%} over k={single} at {load}; gemmaspec tune measures it"


def _at(table: Mapping[int, int], load: int) -> int:
    return next(k for start, k in sorted(table.items(), reverse=True) if start <= load)


Vector = Sequence[float]


def dot(a: Vector, b: Vector) -> float:
    """Return the scalar product."""
    return float(sum(map(mul, a, b)))


class Cholesky:
    """Return L with L Lᵀ = matrix; `matrix` is symmetric and positive definite."""

    def __init__(self, matrix: Sequence[Vector]) -> None:
        self._rows: list[list[float]] = []
        for i, source in enumerate(matrix):
            row: list[float] = []
            for j in range(i + 1):
                known = sum(map(mul, row, self._rows[j] if j < i else row))
                rest = source[j] - known
                row.append(math.sqrt(max(rest, 1e-18)) if i == j else rest / self._rows[j][j])
            self._rows.append(row)

    @property
    def log_determinant(self) -> float:
        """Return the logarithm of the matrix's determinant."""
        return 2 * sum(math.log(row[-1]) for row in self._rows)

    def half(self, right: Vector) -> list[float]:
        """Return x with L x = right."""
        found: list[float] = []
        for row, value in zip(self._rows, right, strict=True):
            found.append((value - sum(map(mul, row, found))) / row[-1])
        return found

    def solve(self, right: Vector) -> list[float]:
        """Return x with matrix x = right."""
        found = self.half(right)
        for i in reversed(range(len(found))):
            found[i] /= self._rows[i][i]
            for j in range(i):
                found[j] -= self._rows[i][j] * found[i]
        return found
