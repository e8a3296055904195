"""Medians, spread over requests, and throughput while all requests were running."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

_RESAMPLES: Final = 400


@dataclass(frozen=True)
class Span:
    """One request: its times in seconds on the clock of its run, and its generated tokens."""

    began: float
    ended: float
    tokens: int


def steady_rate(spans: Sequence[Span], concurrency: int) -> float:
    """Return tokens per second of all requests together, while `concurrency` of them ran.

    This excludes the end of a run, when the last requests finish one by one and the load drops. A request's tokens
    are assumed to be spread evenly over its time, from request to last token.
    """
    if not spans:
        return 0.0
    start = min(span.began for span in spans)
    ends = sorted(span.ended for span in spans)
    stop = ends[max(len(ends) - concurrency, 0)]
    tokens = sum(span.tokens * _overlap(span, start, stop) for span in spans)
    if stop > start:
        return tokens / (stop - start)
    return 0.0


def _overlap(span: Span, start: float, stop: float) -> float:
    """Return the share of a request that lies between two moments."""
    length = span.ended - span.began
    if length > 0:
        return max(0.0, min(span.ended, stop) - max(span.began, start)) / length
    return 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of them lie, 0 to 1, interpolated. Raises ValueError for no value."""
    if not values:
        raise ValueError("no value")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles in the form of a result."""
    return {
        "median": statistics.median(values),
        "p25": percentile(values, 0.25),
        "p75": percentile(values, 0.75),
        "min": min(values),
        "max": max(values),
    }


def by_request(
    items: Sequence[T], measure: Callable[[Sequence[T]], float], *, seed: int = 0
) -> tuple[float, float] | None:
    """Return the 90 % bootstrap interval of `measure` over requests, because tokens of one answer are not independent.

    None for fewer than four requests.
    """
    if len(items) < 4:
        return None
    dice = random.Random(seed)  # noqa: S311 - a resampling that repeats itself
    drawn = [measure(dice.choices(items, k=len(items))) for _ in range(_RESAMPLES)]
    return percentile(drawn, 0.05), percentile(drawn, 0.95)
