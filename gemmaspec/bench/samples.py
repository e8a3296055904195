"""What one cell gave: samples of requests, counters of groups, and the figures they amount to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.bench.stats import Span, by_request, spread, steady_rate

MOVED: Final = 0.03
"""Relative change of the reference step between which a cell does not count as measured on one machine."""


@dataclass(frozen=True, kw_only=True)
class RequestSample:
    """One request; moments in seconds since the cell began, readings of counters left out."""

    prompt: str
    category: str
    sent: float
    first: float
    """The first token was there."""
    last: float
    """The last token was there."""
    chunks: int
    """Chunks after the first."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    characters: int
    accepted: tuple[int, ...] = ()
    """Steps that accepted 0, 1 … k tokens, where the server says it for each request."""

    @property
    def decoding(self) -> float:
        """Seconds from the first token to the last."""
        return self.last - self.first


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Requests that one reading of the counters belongs to: a category, or all of them."""

    category: str | None
    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]
    foreign_tokens: int
    """Tokens that the server generated meanwhile and that no request of ours got."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything of one cell."""

    samples: tuple[RequestSample, ...]
    groups: tuple[SampleGroup, ...]
    wall: float
    """Seconds in which requests ran."""
    idle: float
    """Seconds of our own between two requests of one worker, summed."""
    reference_before: float
    """Seconds of a step of the reference request."""
    reference_after: float
    gpu: dict[str, Any] | None = None

    @property
    def reference_moved(self) -> float:
        """How far the reference step moved, relative to before."""
        return self.reference_after / self.reference_before - 1

    @property
    def steady(self) -> bool:
        """Whether the machine was the same before and after."""
        return abs(self.reference_moved) <= MOVED


def figures(found: Measured, *, concurrency: int, k: int) -> dict[str, Any]:
    """What a cell amounts to, by the names that a result uses."""
    samples = found.samples
    tokens = sum(one.completion_tokens for one in samples)
    spans = [Span(one.sent, one.last, one.completion_tokens) for one in samples]
    per_token = [one.decoding / (one.completion_tokens - 1) * 1000 for one in samples if one.completion_tokens > 1]
    acceptance = rates(found.groups, k)
    return {
        "tokens_per_second": steady_rate(spans, concurrency),
        "output_tokens_per_second": tokens / found.wall if found.wall > 0 else 0.0,
        "step_ms": step(found) * 1000,
        "ttft_ms": spread([(one.first - one.sent) * 1000 for one in samples]),
        "tpot_ms": spread(per_token) if per_token else None,
        "acceptance": list(acceptance),
        "acceptance_length": 1 + sum(acceptance),
        "acceptance_length_90": _length_interval(samples),
        "acceptance_by_category": by_category(found, k),
        "requests": len(samples),
        "prompt_tokens": statistics.median([one.prompt_tokens for one in samples]),
        "completion_tokens": tokens,
        "wall_seconds": found.wall,
        "overhead": found.idle / (found.wall * concurrency) if found.wall > 0 else 0.0,
        "foreign_tokens": sum(one.foreign_tokens for one in found.groups),
    }


def rates(groups: Sequence[SampleGroup], k: int) -> tuple[float, ...]:
    """r_1 … r_k over groups; 0 for a position at which nothing was accepted."""
    drafts = sum(one.drafts for one in groups)
    if not drafts:
        return (0.0,) * k
    counts = [sum(one.by_position[i] for one in groups if i < len(one.by_position)) for i in range(k)]
    return tuple(count / drafts for count in counts)


def step(found: Measured) -> float:
    """Seconds of one step, reading prompts left out: the time of all answers over the steps that made them.

    A request takes part in each step of its answer, and each step that verifies drafts counts one draft for it.
    """
    decoding = sum(one.decoding for one in found.samples)
    drafts = sum(one.drafts for one in found.groups)
    steps = drafts or sum(one.completion_tokens - 1 for one in found.samples)
    return decoding / steps if steps else 0.0


def by_category(found: Measured, k: int) -> dict[str, list[float]]:
    """r_1 … r_k of each category: from counters read between categories, else from what each request said."""
    if not k:
        return {}
    if all(one.category for one in found.groups):
        names = dict.fromkeys(one.category for one in found.groups)
        return {str(name): list(rates([one for one in found.groups if one.category == name], k)) for name in names}
    own = [one for one in found.samples if sum(one.accepted)]
    return {
        name: list(_from_histograms([one for one in own if one.category == name], k))
        for name in dict.fromkeys(one.category for one in own)
    }


def _from_histograms(samples: Sequence[RequestSample], k: int) -> tuple[float, ...]:
    steps = sum(sum(one.accepted) for one in samples)
    return (
        tuple(sum(sum(one.accepted[i:]) for one in samples) / steps for i in range(1, k + 1)) if steps else (0.0,) * k
    )


def _length_interval(samples: Sequence[RequestSample]) -> list[float] | None:
    """Where 90 % of E(k) lie by request: only where each request says what was accepted for it."""
    own = [one for one in samples if sum(one.accepted)]
    found = by_request(own, _length) if own else None
    return list(found) if found else None


def _length(samples: Sequence[RequestSample]) -> float:
    steps = sum(sum(one.accepted) for one in samples)
    accepted = sum(i * count for one in samples for i, count in enumerate(one.accepted))
    return 1 + accepted / steps
