"""The time that prompts take: what a request waits for its first token, and what the others wait meanwhile.

    P(b, c) = p_0 ⌈b c / 2,048⌉ + p_1 b c + p_2 b c² + p_3 (b - 1)        b prompts of c tokens that arrive together

A draft speeds up nothing of it, so that decoding and prompts are modelled apart. In a closed loop each of b requests
waits for the prompts of all of them once for each answer: its time is P(b, c) and the steps of its answer. Measured on
an H200, where 8 prompts of 256 tokens wait 0.38 to 0.42 s together and 8 of 8,192 some 17.5 s (measurements/).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gemmaspec.check.predict.algebra import Cholesky, dot, lower_products, products
from gemmaspec.core.rows import Row

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
        matrix = lower_products(weighed)
        for i, wait in enumerate(waits):
            matrix[i][i] += (_NOISE * wait) ** 2
        system = Cholesky(matrix)
        off = [wait - _prior(row.concurrency, row.context) for row, wait in zip(seen, waits, strict=True)]
        columns = list(zip(*weighed, strict=True)) or [()] * len(_PRIORS)
        weights = system.solve(off)
        self._coefficients = [dot(column, weights) for column in columns]
        halves = [system.half(column) for column in columns]
        self._explained = products(halves)

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
