"""The result of one cell: samples of requests, counters of groups, and the figures computed from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.measure.bench.stats import Span, by_request, spread, steady_rate

MOVED: Final = 0.03
"""Relative change of the reference step above which the machine does not count as steady."""


@dataclass(frozen=True, kw_only=True)
class RequestSample:
    """One request; times in seconds since the cell began, without the time to read counters."""

    prompt: str
    category: str
    sent: float
    first: float
    """Time of the first token."""
    last: float
    """Time of the last token."""
    chunks: int
    """Chunks after the first."""
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    characters: int
    accepted: tuple[int, ...] = ()
    """Number of steps that accepted 0, 1 … k tokens, if the server reports it per request."""

    @property
    def decoding(self) -> float:
        """Seconds from the first token to the last."""
        return self.last - self.first


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Requests that share one reading of the counters: a category, or all of them."""

    category: str | None
    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]
    foreign_tokens: int
    """Tokens that the server generated for other clients."""
    decode_seconds: float = 0.0
    """Seconds from each first token to its last by the server's own clock, summed; 0 where it does not say, or
    answered others too."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCell:
    """All data of one cell."""

    samples: tuple[RequestSample, ...]
    groups: tuple[SampleGroup, ...]
    wall: float
    """Seconds in which requests ran."""
    idle: float
    """Seconds of client overhead between two requests of one worker, summed."""
    reference_before: float
    """Seconds per step of the reference request."""
    reference_after: float
    gpu: dict[str, Any] | None = None
    first_waits: tuple[float, ...] = ()
    """Seconds to the first token where prompts were computed apart from the answers."""

    @property
    def reference_moved(self) -> float:
        """Relative change of the reference step."""
        return self.reference_after / self.reference_before - 1

    @property
    def steady(self) -> bool:
        """Whether the machine was equally fast before and after."""
        return abs(self.reference_moved) <= MOVED


def figures(cell: MeasuredCell, *, concurrency: int, k: int) -> dict[str, Any]:
    """Return the figures of a cell, by their names in a result."""
    samples = cell.samples
    tokens = sum(sample.completion_tokens for sample in samples)
    spans = [Span(sample.sent, sample.last, sample.completion_tokens) for sample in samples]
    rate = overhead = 0.0
    if cell.wall > 0:
        rate = tokens / cell.wall
        overhead = cell.idle / (cell.wall * concurrency)
    speed = {
        "tokens_per_second": steady_rate(spans, concurrency),
        "output_tokens_per_second": rate,
        "step_ms": step(cell) * 1000,
    }
    acceptance = rates(cell.groups, k)
    accepted = {
        "acceptance": list(acceptance),
        "acceptance_length": 1 + sum(acceptance),
        "acceptance_length_90": _length_interval(samples),
        "acceptance_by_category": by_category(cell, k),
    }
    work = {
        "requests": len(samples),
        "prompt_tokens": statistics.median([sample.prompt_tokens for sample in samples]),
        "completion_tokens": tokens,
        "wall_seconds": cell.wall,
        "overhead": overhead,
        "foreign_tokens": sum(group.foreign_tokens for group in cell.groups),
    }
    return speed | _waits(cell) | accepted | work


def _waits(cell: MeasuredCell) -> dict[str, Any]:
    """Return the times to the first token and between tokens, in milliseconds."""
    samples = cell.samples
    first = cell.first_waits or [sample.first - sample.sent for sample in samples]
    per_token = []
    for sample in samples:
        if sample.completion_tokens > 1:
            per_token.append(sample.decoding / (sample.completion_tokens - 1) * 1000)
    waits: dict[str, Any] = {"ttft_ms": spread([wait * 1000 for wait in first])}
    if cell.first_waits:
        # each prompt was computed once, for its first token alone; its answer was timed from the cache
        waits["prompts"] = "apart"
    waits["tpot_ms"] = spread(per_token) if per_token else None
    return waits


def rates(groups: Sequence[SampleGroup], k: int) -> tuple[float, ...]:
    """Return r_1 … r_k over groups; 0 for a position at which nothing was accepted."""
    drafts = sum(group.drafts for group in groups)
    if not drafts:
        return (0.0,) * k
    accepted = [0] * k
    for group in groups:
        for position, count in enumerate(group.by_position[:k]):
            accepted[position] += count
    return tuple(count / drafts for count in accepted)


def step(cell: MeasuredCell) -> float:
    """Return the seconds per step without reading prompts: the time of all answers over their steps.

    A request takes part in each step of its answer. Each step that verifies its drafts counts as one draft.
    The time is the server's own where it says it: an answer arrives in one piece, and seems to take no time, where the
    server computes faster than it writes.
    """
    if all(group.decode_seconds > 0 for group in cell.groups):
        decoding = sum(group.decode_seconds for group in cell.groups)
    else:
        decoding = sum(sample.decoding for sample in cell.samples)
    drafts = sum(group.drafts for group in cell.groups)
    steps = drafts or sum(sample.completion_tokens - 1 for sample in cell.samples)
    if steps:
        return decoding / steps
    return 0.0


def by_category(cell: MeasuredCell, k: int) -> dict[str, list[float]]:
    """Return r_1 … r_k per category, from counters read between categories, else from each request's metrics."""
    if not k:
        return {}
    if all(group.category for group in cell.groups):
        groups: dict[str, list[SampleGroup]] = {}
        for group in cell.groups:
            groups.setdefault(str(group.category), []).append(group)
        return {name: list(rates(of_category, k)) for name, of_category in groups.items()}
    drafted: dict[str, list[RequestSample]] = {}
    for sample in cell.samples:
        if sum(sample.accepted):
            drafted.setdefault(sample.category, []).append(sample)
    return {name: list(_from_histograms(samples, k)) for name, samples in drafted.items()}


def _from_histograms(samples: Sequence[RequestSample], k: int) -> tuple[float, ...]:
    steps = _steps_from(samples, 0)
    if not steps:
        return (0.0,) * k
    # accepted[n] counts the steps of which exactly n tokens were taken, so position i was reached by all from i on
    return tuple(_steps_from(samples, position) / steps for position in range(1, k + 1))


def _steps_from(samples: Sequence[RequestSample], tokens: int) -> int:
    """Return in how many steps at least so many drafted tokens were taken."""
    return sum(sum(sample.accepted[tokens:]) for sample in samples)


def _length_interval(samples: Sequence[RequestSample]) -> list[float] | None:
    """Return the 90 % interval of E(k) over requests; None unless each request reports its acceptance."""
    drafted = [sample for sample in samples if sum(sample.accepted)]
    interval = by_request(drafted, _length) if drafted else None
    if interval:
        return list(interval)
    return None


def _length(samples: Sequence[RequestSample]) -> float:
    accepted = 0
    for sample in samples:
        accepted += sum(tokens * count for tokens, count in enumerate(sample.accepted))
    return 1 + accepted / _steps_from(samples, 0)
