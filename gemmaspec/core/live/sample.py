"""One reading of vLLM's /metrics: the counters for its speculation and its load.

Names are the same in every release of vLLM (v1/metrics/loggers.py, v1/spec_decode/metrics.py).

What of a reading of /metrics an answer, a measurement or `status` needs.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TTFT: Final = "vllm:time_to_first_token_seconds"
TPOT: Final = "vllm:request_time_per_output_token_seconds"
E2E: Final = "vllm:e2e_request_latency_seconds"
STEPS: Final = "vllm:iteration_tokens_total"
"""A histogram with one observation per engine step, so its count is the number of steps."""
_HISTOGRAMS: Final = (TTFT, TPOT, E2E)
_PER_POSITION: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_START: Final = "process_start_time_seconds"
_TOTALS: Final = {
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:num_preemptions_total": "preemptions",
    f"{STEPS}_count": "steps",
    "vllm:request_decode_time_seconds_sum": "decode_seconds",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}
_KV_USAGE: Final = "vllm:kv_cache_usage_perc"
_NAMES: Final = {*_TOTALS, _PER_POSITION, _KV_USAGE, _START, *(f"{name}_bucket" for name in _HISTOGRAMS)}
"""What is read of a page. Another program's metric may begin with the same words."""
_NAME_ENDS: Final = re.compile(r"[\s{]")
_MODEL: Final = "model_name"
"""The label of all of them but _START."""
_MOST_POSITIONS: Final = 64
_LARGEST: Final = 2.0**53
"""No count is larger: above it, a float does not hold every whole number."""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Cumulative counts by upper bound, as Prometheus has them; the last bound is infinity."""

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Counters since the server's start and current gauges, summed over its engines."""

    at: float
    """Seconds on a monotonic clock."""
    started: float = 0.0
    """Unix time at which the server's process started; 0 if it is not reported."""
    generation_tokens: float = 0.0
    prompt_tokens: float = 0.0
    counts_drafts: bool = False
    """Whether it counts drafts, be it none so far: vLLM does where a draft is configured."""
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    accepted_by_position: tuple[float, ...] = ()
    """Accepted tokens at position 1, 2, … of a draft."""
    decode_seconds: float = 0.0
    """Seconds from the first token to the last of every answer that has ended, on the server's own clock."""
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    preemptions: float = 0.0
    steps: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    """The fullest engine's share of its KV cache in use, 0 to 1."""
    histograms: Mapping[str, Histogram]


def read_sample(text: str, *, at: float, model: str = "") -> Sample:
    """Return the sample in a /metrics page. Raises ValueError if it is invalid.

    Where the page has rows of `model`, those of other models do not count: something before the server may join pages.
    """
    from prometheus_client.parser import text_string_to_metric_families  # slow to import

    totals: dict[str, float] = defaultdict(float)
    positions: dict[int, float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = {name: defaultdict(float) for name in _HISTOGRAMS}
    usage, started = 0.0, 0.0
    wanted = _wanted(text)
    if not wanted.strip():
        raise ValueError("the page has no vLLM counters")
    families = list(text_string_to_metric_families(wanted))
    models = {labels.get(_MODEL) for family in families for _, labels, *_ in family.samples}
    for family in families:
        for name, labels, value, *_ in family.samples:
            if model in models and labels.get(_MODEL, model) != model:
                continue
            if not 0 <= value <= _LARGEST:
                raise ValueError(f"{name} is negative, too large or not a number")
            if field := _TOTALS.get(name):
                totals[field] += value
            elif name == _PER_POSITION:
                positions[_position(labels)] += value
            elif name == _KV_USAGE:
                usage = max(usage, value)
            elif name == _START:
                started = max(started, value)
            else:
                buckets[name.removesuffix("_bucket")][float(labels.get("le", "nan"))] += value
    accepted = tuple(positions[place] for place in range(max(positions, default=-1) + 1))
    return Sample(
        at=at,
        started=started,
        kv_usage=usage,
        counts_drafts="drafts" in totals,
        accepted_by_position=accepted,
        histograms={name: _histogram(bucket) for name, bucket in buckets.items()},
        **totals,
    )


def _wanted(text: str) -> str:
    """Return the lines that matter, because a page has thousands of others."""
    return "\n".join(line for line in text.splitlines() if _NAME_ENDS.split(line, maxsplit=1)[0] in _NAMES) + "\n"


def _position(labels: Mapping[str, str]) -> int:
    place = int(labels.get("position", "-1"))
    if not 0 <= place < _MOST_POSITIONS:
        raise ValueError("a draft position is out of range")
    return place


def _histogram(buckets: Mapping[float, float]) -> Histogram:
    if any(math.isnan(bound) for bound in buckets):
        raise ValueError("a histogram bucket has no upper bound")
    bounds = sorted(buckets)
    return Histogram(bounds=tuple(bounds), counts=tuple(buckets[bound] for bound in bounds))


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts since the server's start, summed over its engines; all zero if it counts nothing."""

    generated: int = 0
    drafts: int = 0
    """Number of drafts."""
    drafted: int = 0
    """Proposed tokens."""
    accepted: int = 0
    """Proposed tokens that the target accepted."""
    decode_seconds: float = 0.0
    """Seconds from the first token to the last of all ended answers; 0 from a server that does not report them."""
    cached: int = 0
    """Tokens of prompts that were read from the prefix cache."""
    by_position: tuple[int, ...] = ()
    """Accepted tokens at each position."""

    @classmethod
    def of(cls, sample: Sample) -> Counters:
        """Return the counters in a reading."""
        return cls(
            generated=int(sample.generation_tokens),
            drafts=int(sample.drafts),
            drafted=int(sample.draft_tokens),
            accepted=int(sample.accepted_tokens),
            decode_seconds=sample.decode_seconds,
            cached=int(sample.prefix_hits),
            by_position=tuple(map(int, sample.accepted_by_position)),
        )

    def since(self, before: Counters) -> Counters | None:
        """Return the increase; None if a count decreased, because the server was restarted."""
        # an earlier reading may know fewer positions
        earlier = (*before.by_position, *(0,) * len(self.by_position))
        by_position = tuple(now - first for now, first in zip(self.by_position, earlier, strict=False))
        added = Counters(
            generated=self.generated - before.generated,
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            decode_seconds=self.decode_seconds - before.decode_seconds,
            cached=self.cached - before.cached,
            by_position=by_position,
        )
        counts = (added.generated, added.drafts, added.drafted, added.accepted, *added.by_position)
        if min(counts) >= 0:
            return added
        return None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per step of the target, its own one included: 1 + accepted / drafts, as vLLM logs it."""
        if self.drafts:
            return 1 + self.accepted / self.drafts
        return None
