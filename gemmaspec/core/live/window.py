"""What happened between two samples of one server.

The recent samples of one server: enough to show the present and the last ten minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.live.sample import E2E, TPOT, TTFT, Histogram, Sample


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Quantiles of a latency in seconds; None without an observation."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, kw_only=True)
class Window:
    """Rates and shares over some seconds. A share is None if its denominator is zero."""

    seconds: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    drafts: int
    drafted_per_second: float
    accepted_per_second: float
    acceptance_length: float | None
    """Tokens per step of the target, its own one included: 1 + accepted / drafts."""
    k: float | None
    """Draft tokens per draft: the k in use."""
    by_position: tuple[float, ...]
    """r_1, r_2, …: the share of drafts whose first i tokens were all accepted."""
    step_ms: float | None
    """Mean time of an engine step, while requests were running at both ends."""
    prefix_hit_share: float | None
    preemptions: int
    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles


def window(before: Sample, now: Sample) -> Window | None:
    """Return what happened from `before` to `now`; None if no time passed or the server was restarted between them."""
    seconds = now.at - before.at
    if seconds <= 0 or restarted(before, now):
        return None
    drafts = now.drafts - before.drafts
    drafted = now.draft_tokens - before.draft_tokens
    accepted = now.accepted_tokens - before.accepted_tokens
    steps = now.steps - before.steps
    queries = now.prefix_queries - before.prefix_queries
    generated = now.generation_tokens - before.generation_tokens
    prompt_tokens = now.prompt_tokens - before.prompt_tokens
    cached = now.prefix_hits - before.prefix_hits
    preemptions = now.preemptions - before.preemptions
    acceptance_length = k = step_ms = prefix_hit_share = None
    if drafts:
        acceptance_length = 1 + accepted / drafts
        k = drafted / drafts
    # a step's time is known only where steps followed each other: with work at both ends
    if steps > 0 and before.running > 0 and now.running > 0:
        step_ms = 1000 * seconds / steps
    if queries:
        prefix_hit_share = cached / queries
    return Window(
        seconds=seconds,
        tokens_per_second=generated / seconds,
        prompt_tokens_per_second=prompt_tokens / seconds,
        drafts=int(drafts),
        drafted_per_second=drafted / seconds,
        accepted_per_second=accepted / seconds,
        acceptance_length=acceptance_length,
        k=k,
        by_position=_by_position(before, now, drafts),
        step_ms=step_ms,
        prefix_hit_share=prefix_hit_share,
        preemptions=int(preemptions),
        ttft=_quantiles(before, now, TTFT),
        tpot=_quantiles(before, now, TPOT),
        e2e=_quantiles(before, now, E2E),
    )


_COUNTS: Final = ("generation_tokens", "prompt_tokens", "drafts", "draft_tokens", "accepted_tokens", "steps")
"""Fields of Sample that only grow while a server runs."""


def restarted(before: Sample, now: Sample) -> bool:
    """Return whether the server's counters were reset between two samples."""
    if before.started and now.started and abs(now.started - before.started) > 1:
        return True
    return any(getattr(now, count) < getattr(before, count) for count in _COUNTS)


def quantile(share: float, bounds: Sequence[float], counts: Sequence[float]) -> float | None:
    """Return a quantile of a cumulative histogram, as Prometheus' histogram_quantile does: linear within a bucket.

    None without an observation. A quantile in the last, unbounded bucket is the largest finite bound.
    """
    total = counts[-1] if counts else 0
    if total <= 0:
        return None
    rank = share * total
    below, reached = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank and count > reached:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (rank - reached) / (count - reached)
        below, reached = bound, count
    return below


def _by_position(before: Sample, now: Sample, drafts: float) -> tuple[float, ...]:
    if not drafts:
        return ()
    earlier = (*before.accepted_by_position, *(0.0,) * len(now.accepted_by_position))
    pairs = zip(earlier, now.accepted_by_position, strict=False)
    return tuple((later - first) / drafts for first, later in pairs)


def _quantiles(before: Sample, now: Sample, name: str) -> Quantiles:
    bounds, counts = _since(before.histograms.get(name, Histogram()), now.histograms.get(name, Histogram()))
    return Quantiles(
        p50=quantile(0.5, bounds, counts), p90=quantile(0.9, bounds, counts), p99=quantile(0.99, bounds, counts)
    )


def _since(before: Histogram, now: Histogram) -> tuple[Sequence[float], Sequence[float]]:
    if before.bounds != now.bounds:
        return now.bounds, now.counts
    return now.bounds, [later - first for later, first in zip(now.counts, before.counts, strict=True)]


KEPT_S: Final = 600.0
NOW_S: Final = 5.0
"""Seconds that "now" spans, because one second has too few steps on a slow machine."""


class History:
    """Samples in order of time. A restart of the server discards earlier ones."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> None:
        """Keep a sample, and drop what is older than KEPT_S."""
        if self._samples and restarted(self._samples[-1], sample):
            self._samples.clear()
        self._samples.append(sample)
        while sample.at - self._samples[0].at > KEPT_S:
            self._samples.popleft()

    @property
    def last(self) -> Sample | None:
        """The newest sample."""
        if self._samples:
            return self._samples[-1]
        return None

    def over(self, seconds: float) -> Window | None:
        """Return the window of the last `seconds`, or as much as there is; None with fewer than two samples."""
        if len(self._samples) < 2:
            return None
        *earlier, last, now = self._samples
        for first in earlier:
            if now.at - first.at <= seconds:
                return window(first, now)
        return window(last, now)
