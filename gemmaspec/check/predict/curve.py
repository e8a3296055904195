"""A curve of acceptance by position: measured as far as rows go, continued beyond, and how far it may be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Final

from gemmaspec.core.rows import Row

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
        if known is not None:
            mean, spread = (known, SPREAD)
        else:
            mean, spread = UNKNOWN
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
