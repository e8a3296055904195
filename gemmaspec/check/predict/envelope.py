"""The best k for each load, and the table of k (`speculative.k_by_requests`) that it gives.

The time that prompts take: what a request waits for its first token, and what the others wait meanwhile.

    P(b, c) = p_0 ⌈b c / 2,048⌉ + p_1 b c + p_2 b c² + p_3 (b - 1)        b prompts of c tokens that arrive together

A draft speeds up nothing of it, so that decoding and prompts are modelled apart. In a closed loop each of b requests
waits for the prompts of all of them once for each answer: its time is P(b, c) and the steps of its answer. Measured on
an H200, where 8 prompts of 256 tokens wait 0.38 to 0.42 s together and 8 of 8,192 some 17.5 s (measurements/).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, Final

from gemmaspec.core.rows import Row

GAIN: Final = 0.02
"""Relative gain at some load from which a table is worth its longer start."""

Speeds = Mapping[int, Mapping[int, float]]
"""Requests at once → k → tokens per second of all requests."""


def best_k(speeds: Speeds) -> dict[int, int]:
    """Return the fastest k at each load, 0 included."""
    return {load: max(rates, key=lambda k: rates[k]) for load, rates in sorted(speeds.items()) if rates}


def best_single(speeds: Speeds) -> int | None:
    """Return the k that drafts and is fastest over all loads, each of which counts the same; None without any."""
    common = set.intersection(*({k for k in speed if k} for speed in speeds.values())) if speeds else set()
    return max(common, key=lambda k: statistics.fmean(math.log(speed[k]) for speed in speeds.values()), default=None)


def k_table(speeds: Speeds, single: int) -> dict[int, int]:
    """Return the table that drafts another k than `single` at the loads where that is more than GAIN faster.

    Empty where there is no such load. A table of these has no 0: a draft that rests still reads every token, which
    took 5 to 6 % of a step (H200, vLLM 0.32.0, mtp).
    """
    table: dict[int, int] = {}
    for load, rates in sorted(speeds.items()):
        best = max((k for k in rates if k), key=lambda k: rates[k])
        k = best if rates[best] > rates[single] * (1 + GAIN) else single
        if not table or k != list(table.values())[-1]:
            table[load if table else 1] = k
    return table if len(table) > 1 else {}


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


Vector = Sequence[float]


def dot(a: Vector, b: Vector) -> float:
    """Return the scalar product."""
    return float(sum(map(mul, a, b)))


class Cholesky:
    """Return L with L Lᵀ = matrix; `matrix` is symmetric and positive definite, and its lower triangle is enough."""

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
        half: list[float] = []
        for row, value in zip(self._rows, right, strict=True):
            half.append((value - sum(map(mul, row, half))) / row[-1])
        return half

    def solve(self, right: Vector) -> list[float]:
        """Return x with matrix x = right."""
        solution = self.half(right)
        for i in reversed(range(len(solution))):
            solution[i] /= self._rows[i][i]
            for j in range(i):
                solution[j] -= self._rows[i][j] * solution[i]
        return solution


CHUNK: Final = 2048
"""Tokens of prompts that one pass reads: vLLM's smallest default of max_num_batched_tokens."""
_NOISE: Final = 0.08
"""Relative standard deviation of a median wait."""
_BATCH: Final = 2.4
"""Error of the step of a batch that drafts, over that of one request: requests have unequal luck and end together. The
same cell of an H200 took 20.5 and 22.5 ms on two days (8 requests, 256 tokens, mtp k=4; measurements/, patches/)."""
_PRIORS: Final = ((2.0, 2.0), (12.0, 10.0), (0.8, 0.8), (0.0, 1.0))
"""p_0, p_1 for 1,000 tokens, p_2 for 1,000² and p_3 in shortest steps: mean and deviation."""


class Prompts:
    """The time of prompts, fitted to the waits for the first token of some rows."""

    def __init__(self, rows: Sequence[Row], unit: float) -> None:
        """`unit`: the shortest step in seconds, which the priors are in."""
        seen = [row for row in rows if row.ttft_ms is not None and _together(row)]
        self.known = bool(seen)
        self._unit = unit
        waits = [(row.ttft_ms or 0.0) / 1000 / unit for row in seen]
        weighed = [_weighed(row.concurrency, row.context) for row in seen]
        matrix = [[dot(a, b) for b in weighed[: i + 1]] for i, a in enumerate(weighed)]
        for i, wait in enumerate(waits):
            matrix[i][i] += (_NOISE * wait) ** 2
        system = Cholesky(matrix)
        off = [wait - _prior(row.concurrency, row.context) for row, wait in zip(seen, waits, strict=True)]
        columns = list(zip(*weighed, strict=True)) or [()] * len(_PRIORS)
        weights = system.solve(off)
        self._coefficients = [dot(column, weights) for column in columns]
        halves = [system.half(column) for column in columns]
        self._explained = [[dot(a, b) for b in halves] for a in halves]

    def at(self, batch: int, context: int) -> tuple[float, float]:
        """Return the seconds of `batch` prompts of `context` tokens, and their standard deviation; 0 if not known."""
        if not self.known:
            return 0.0, 0.0
        weighed = _weighed(batch, context)
        mean = max(_prior(batch, context) + dot(weighed, self._coefficients), 0.0)
        variance = dot(weighed, weighed) - dot(weighed, [dot(row, weighed) for row in self._explained])
        return mean * self._unit, math.sqrt(max(variance, 0.0)) * self._unit

    def of(self, row: Row) -> float:
        """Return the time of a row's own prompts, as it was measured where that is clean."""
        if row.ttft_ms is None or not self.known:
            return 0.0
        if _together(row):
            return row.ttft_ms / 1000
        return self.at(row.concurrency, row.context)[0]

    def decoding(self, row: Row) -> tuple[float, float]:
        """Return the seconds of a row's step without others' prompts, and its relative error over that of the rate."""
        answer = row.answer_tokens
        if row.ttft_ms is None or answer is None:
            return row.step, _BATCH if row.k and row.concurrency > 1 else 1.0
        whole = row.concurrency * answer / row.tokens_per_second
        rest = max(whole - self.of(row), 0.05 * whole)
        return rest * row.tokens_per_step / (answer - 1), whole / rest


def _together(row: Row) -> bool:
    """Return whether the wait is that of its own prompts alone: one request, or all of them in one pass."""
    return row.concurrency == 1 or row.concurrency * row.context <= CHUNK


def _features(batch: int, context: int) -> list[float]:
    tokens = batch * context / 1000
    return [math.ceil(batch * context / CHUNK), tokens, tokens * context / 1000, batch - 1]


def _weighed(batch: int, context: int) -> list[float]:
    return [value * spread for value, (_, spread) in zip(_features(batch, context), _PRIORS, strict=True)]


def _prior(batch: int, context: int) -> float:
    return sum(value * mean for value, (mean, _) in zip(_features(batch, context), _PRIORS, strict=True))


LAST: Final = 3
"""Number of conditional probabilities, after the first, whose mean continues a curve."""
SPREAD: Final = 0.06
"""Standard deviation of the conditional probability that continues a curve."""
UNKNOWN: Final = (0.7, 0.15)
"""Conditional probability of an unknown pair, and its standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """r_1 … r_k of one prediction."""

    rates: tuple[float, ...]
    measured: int
    """Positions that were measured; the others are extrapolated."""
    deviation: float
    """Standard deviation of E(k), in tokens."""

    @property
    def tokens_per_step(self) -> float:
        """E(k) = 1 + r_1 + … + r_k."""
        return 1 + sum(self.rates)


def curve(rows: Sequence[Row], *, k: int, context: int, known: float | None = None) -> Curve:
    """Return the curve of one method at k, from rows of that method and setting.

    Rows of the same k take precedence, because a head that drafts a block in one pass may draft a shorter one worse;
    then rows of the same context. `known` is a conditional probability from elsewhere, used if there are no rows.
    """
    if k == 0:
        return Curve(rates=(), measured=0, deviation=0)
    drafted = [row for row in rows if row.k and not row.by_lot] or [row for row in rows if row.k]
    drafted = [row for row in drafted if row.context == context] or drafted
    same = [row for row in drafted if row.k == k]
    rates = _mean(same or drafted, k)
    if not rates:
        mean, spread = (known, SPREAD) if known is not None else UNKNOWN
        return _continued((), mean, spread, k)
    return _continued(rates, _next(rates), SPREAD, k)


def _mean(rows: Sequence[Row], k: int) -> tuple[float, ...]:
    """Return the mean at each position over the rows that have it."""
    means: list[float] = []
    for position in range(min(k, max((row.k for row in rows), default=0))):
        values = [row.acceptance[position] for row in rows if row.k > position]
        mean = sum(values) / len(values)
        means.append(min(mean, means[-1]) if means else mean)
    return tuple(means)


def _next(rates: Sequence[float]) -> float:
    """Return the conditional probability of the next position."""
    steps = [after / before if before > 0 else 0.0 for before, after in zip((1.0, *rates), rates, strict=False)]
    last = steps[1:][-LAST:] or steps
    return sum(last) / len(last)


def _continued(rates: tuple[float, ...], conditional: float, spread: float, k: int) -> Curve:
    missing = k - len(rates)

    def tail(probability: float) -> tuple[float, ...]:
        start = rates[-1] if rates else 1.0
        return tuple(accumulate([start, *[min(max(probability, 0.0), 1.0)] * missing], mul))[1:]

    middle = tail(conditional)
    spread_of_sum = (sum(tail(conditional + spread)) - sum(tail(conditional - spread))) / 2
    return Curve(rates=(*rates, *middle), measured=len(rates), deviation=spread_of_sum)
