"""What happened between two samples of one server.

What `top` shows: one column for each stack, and the GPUs below, as plain data and as the rows of a table.

The recent samples of one server: enough to show the present and the last ten minutes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    busy = steps > 0 and before.running > 0 and now.running > 0
    return Window(
        seconds=seconds,
        tokens_per_second=(now.generation_tokens - before.generation_tokens) / seconds,
        prompt_tokens_per_second=(now.prompt_tokens - before.prompt_tokens) / seconds,
        drafts=int(drafts),
        drafted_per_second=drafted / seconds,
        accepted_per_second=accepted / seconds,
        acceptance_length=1 + accepted / drafts if drafts else None,
        k=drafted / drafts if drafts else None,
        by_position=_by_position(before, now, drafts),
        step_ms=1000 * seconds / steps if busy else None,
        prefix_hit_share=(now.prefix_hits - before.prefix_hits) / queries if queries else None,
        preemptions=int(now.preemptions - before.preemptions),
        ttft=_quantiles(before, now, TTFT),
        tpot=_quantiles(before, now, TPOT),
        e2e=_quantiles(before, now, E2E),
    )


def restarted(before: Sample, now: Sample) -> bool:
    """Return whether the server's counters were reset between two samples."""
    if before.started and now.started and abs(now.started - before.started) > 1:
        return True
    pairs = (
        (before.generation_tokens, now.generation_tokens),
        (before.prompt_tokens, now.prompt_tokens),
        (before.drafts, now.drafts),
        (before.draft_tokens, now.draft_tokens),
        (before.accepted_tokens, now.accepted_tokens),
        (before.steps, now.steps),
    )
    return any(later < earlier for earlier, later in pairs)


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
    return tuple((later - first) / drafts for later, first in zip(now.accepted_by_position, earlier, strict=False))


def _quantiles(before: Sample, now: Sample, name: str) -> Quantiles:
    bounds, counts = _since(before.histograms.get(name, Histogram()), now.histograms.get(name, Histogram()))
    return Quantiles(
        p50=quantile(0.5, bounds, counts), p90=quantile(0.9, bounds, counts), p99=quantile(0.99, bounds, counts)
    )


def _since(before: Histogram, now: Histogram) -> tuple[Sequence[float], Sequence[float]]:
    if before.bounds != now.bounds:
        return now.bounds, now.counts
    return now.bounds, [later - first for later, first in zip(now.counts, before.counts, strict=True)]


_BARS: Final = "▁▂▃▄▅▆▇█"
_UNKNOWN: Final = "-"


@dataclass(frozen=True, kw_only=True)
class View:
    """The current reading of one stack."""

    name: str
    engine: str
    address: str
    problem: str | None = None
    """Why there is nothing to show: not running, or no answer from /metrics; None otherwise."""
    hang: str = ""
    """Since when it hangs, although it answers /metrics, as `watch` has found."""
    vllm: str | None = None
    patches: tuple[str, ...] = ()
    """Patches that the running server reports as in place."""
    sample: Sample | None = None
    now: Window | None = None
    """The last seconds."""
    lately: Window | None = None
    """The last ten minutes, or as much as there is."""


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """One GPU of this machine; a value is None if the driver does not report it."""

    name: str
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    memory_used: int | None = None


@dataclass(frozen=True, kw_only=True)
class Board:
    """Everything that one refresh shows. `at` is Unix time; memory is in bytes."""

    at: float
    views: tuple[View, ...]
    gpus: tuple[GpuLoad, ...] = ()
    memory_available: int | None = None
    """Memory available to programs; on a machine with unified memory, to the GPU too."""


def rows(views: Sequence[View]) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the table: a label, and a cell for each stack."""
    yield "engine", [view.problem or view.hang or view.engine for view in views]
    yield "vLLM", [view.vllm or _UNKNOWN for view in views]
    yield "tokens/s", [_both(view, lambda w: f"{w.tokens_per_second:.1f}") for view in views]
    yield "prompt tokens/s", [_both(view, lambda w: f"{w.prompt_tokens_per_second:.1f}") for view in views]
    yield "acceptance length", [_both(view, lambda w: _number(w.acceptance_length, "{:.2f}")) for view in views]
    yield "by position", [_both(view, lambda w: bars(w.by_position) or _UNKNOWN) for view in views]
    yield "k in use", [_both(view, lambda w: _number(w.k, "{:.1f}")) for view in views]
    yield (
        "drafted, accepted/s",
        [_both(view, lambda w: f"{w.drafted_per_second:.1f}, {w.accepted_per_second:.1f}") for view in views],
    )
    yield "step", [_both(view, lambda w: _number(w.step_ms, "{:.1f} ms")) for view in views]
    yield (
        "running, waiting",
        [f"{view.sample.running:.0f}, {view.sample.waiting:.0f}" if view.sample else _UNKNOWN for view in views],
    )
    yield "KV cache", [f"{view.sample.kv_usage:.1%}" if view.sample else _UNKNOWN for view in views]
    yield "prefix cache hits", [_both(view, lambda w: _number(w.prefix_hit_share, "{:.0%}")) for view in views]
    yield "first token", [_lately(view, lambda w: _latency(w.ttft)) for view in views]
    yield "per token", [_lately(view, lambda w: _latency(w.tpot)) for view in views]
    yield "preemptions", [_lately(view, lambda w: str(w.preemptions)) for view in views]
    yield "patches", [", ".join(view.patches) or _UNKNOWN for view in views]


def gpu_line(gpu: GpuLoad) -> str:
    """Return a GPU in one line."""
    memory = None if gpu.memory_used is None else gpu.memory_used / 1e9
    cells = (
        _number(gpu.power_w, "{:.0f} W"),
        _number(gpu.clock_mhz, "{:.0f} MHz"),
        _number(gpu.temperature_c, "{:.0f} °C"),
        _number(memory, "{:.1f} GB used"),
    )
    return f"{gpu.name}  " + "  ".join(cell for cell in cells if cell != _UNKNOWN)


def bars(shares: Sequence[float]) -> str:
    """Return shares between 0 and 1 as a row of block characters."""
    return "".join(_BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))] for share in shares)


def document(board: Board) -> dict[str, Any]:
    """Return the board as JSON."""
    return {
        "at": board.at,
        "memory_available": board.memory_available,
        "gpus": [dataclasses.asdict(gpu) for gpu in board.gpus],
        "stacks": [_view_json(view) for view in board.views],
    }


def _view_json(view: View) -> dict[str, Any]:
    sample = view.sample
    gauges = None
    if sample:
        gauges = {"running": sample.running, "waiting": sample.waiting, "kv_usage": sample.kv_usage}
    return {
        "name": view.name,
        "engine": view.engine,
        "address": view.address,
        "problem": view.problem,
        "hang": view.hang or None,
        "vllm": view.vllm,
        "patches": list(view.patches),
        "gauges": gauges,
        "now": dataclasses.asdict(view.now) if view.now else None,
        "lately": dataclasses.asdict(view.lately) if view.lately else None,
    }


def _both(view: View, cell: Callable[[Window], str]) -> str:
    """Return "now (lately)", or the part that is known."""
    now, lately = _cell(view.now, cell), _cell(view.lately, cell)
    return now if lately in (_UNKNOWN, now) else f"{now} ({lately})"


def _lately(view: View, cell: Callable[[Window], str]) -> str:
    return _cell(view.lately, cell)


def _cell(window: Window | None, cell: Callable[[Window], str]) -> str:
    return cell(window) if window else _UNKNOWN


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else form.format(value)


def _latency(quantiles: Quantiles) -> str:
    if quantiles.p50 is None or quantiles.p90 is None or quantiles.p99 is None:
        return _UNKNOWN
    return f"{_time(quantiles.p50)}, {_time(quantiles.p90)}, {_time(quantiles.p99)}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


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
        return self._samples[-1] if self._samples else None

    def over(self, seconds: float) -> Window | None:
        """Return the window of the last `seconds`, or as much as there is; None with fewer than two samples."""
        if len(self._samples) < 2:
            return None
        now = self._samples[-1]
        first = next(sample for sample in self._samples if now.at - sample.at <= seconds or sample is self._samples[-2])
        return window(first if first is not now else self._samples[-2], now)
