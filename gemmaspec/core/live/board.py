"""What `top` shows: one column for each stack, and the GPUs below, as plain data and as the rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.live.sample import Sample
from gemmaspec.core.live.window import Quantiles, Window

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
    """Yield the rows of the table: a label, and a cell for each stack, of which there is one at least."""
    columns = [_column(view) for view in views]
    for label in columns[0]:
        yield label, [column[label] for column in columns]


def _column(view: View) -> dict[str, str]:
    """Return the cells of one stack by their label, from top to bottom."""
    queue = cache = _UNKNOWN
    if view.sample:
        queue = f"{view.sample.running:.0f}, {view.sample.waiting:.0f}"
        cache = f"{view.sample.kv_usage:.1%}"
    return {
        "engine": view.problem or view.hang or view.engine,
        "vLLM": view.vllm or _UNKNOWN,
        "tokens/s": _both(view, lambda w: f"{w.tokens_per_second:.1f}"),
        "prompt tokens/s": _both(view, lambda w: f"{w.prompt_tokens_per_second:.1f}"),
        "acceptance length": _both(view, lambda w: _number(w.acceptance_length, "{:.2f}")),
        "by position": _both(view, lambda w: bars(w.by_position) or _UNKNOWN),
        "k in use": _both(view, lambda w: _number(w.k, "{:.1f}")),
        "drafted, accepted/s": _both(view, lambda w: f"{w.drafted_per_second:.1f}, {w.accepted_per_second:.1f}"),
        "step": _both(view, lambda w: _number(w.step_ms, "{:.1f} ms")),
        "running, waiting": queue,
        "KV cache": cache,
        "prefix cache hits": _both(view, lambda w: _number(w.prefix_hit_share, "{:.0%}")),
        "first token": _lately(view, lambda w: _latency(w.ttft)),
        "per token": _lately(view, lambda w: _latency(w.tpot)),
        "preemptions": _lately(view, lambda w: str(w.preemptions)),
        "patches": ", ".join(view.patches) or _UNKNOWN,
    }


def gpu_line(gpu: GpuLoad) -> str:
    """Return a GPU in one line."""
    if gpu.memory_used is None:
        memory = None
    else:
        memory = gpu.memory_used / 1e9
    cells = (
        _number(gpu.power_w, "{:.0f} W"),
        _number(gpu.clock_mhz, "{:.0f} MHz"),
        _number(gpu.temperature_c, "{:.0f} °C"),
        _number(memory, "{:.1f} GB used"),
    )
    return f"{gpu.name}  " + "  ".join(cell for cell in cells if cell != _UNKNOWN)


def bars(shares: Sequence[float]) -> str:
    """Return shares between 0 and 1 as a row of block characters."""
    row = ""
    for share in shares:
        height = int(share * len(_BARS))
        row += _BARS[min(len(_BARS) - 1, max(0, height))]
    return row


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
    now = dataclasses.asdict(view.now) if view.now else None
    lately = dataclasses.asdict(view.lately) if view.lately else None
    return {
        "name": view.name,
        "engine": view.engine,
        "address": view.address,
        "problem": view.problem,
        "hang": view.hang or None,
        "vllm": view.vllm,
        "patches": list(view.patches),
        "gauges": gauges,
        "now": now,
        "lately": lately,
    }


def _both(view: View, cell: Callable[[Window], str]) -> str:
    """Return "now (lately)", or the part that is known."""
    now, lately = _cell(view.now, cell), _cell(view.lately, cell)
    if lately in (_UNKNOWN, now):
        return now
    return f"{now} ({lately})"


def _lately(view: View, cell: Callable[[Window], str]) -> str:
    return _cell(view.lately, cell)


def _cell(window: Window | None, cell: Callable[[Window], str]) -> str:
    if window:
        return cell(window)
    return _UNKNOWN


def _number(value: float | None, form: str) -> str:
    if value is None:
        return _UNKNOWN
    return form.format(value)


def _latency(quantiles: Quantiles) -> str:
    if quantiles.p50 is None or quantiles.p90 is None or quantiles.p99 is None:
        return _UNKNOWN
    return f"{_time(quantiles.p50)}, {_time(quantiles.p90)}, {_time(quantiles.p99)}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms"
