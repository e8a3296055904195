"""How fast a machine reads its memory, judged: each token of a dense model reads all its weights."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from gemmaspec.doctor.result import CheckResult, ok, skipped, warning

GB: Final = 10**9
_UNEVEN: Final = 0.7


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Rates in bytes per second, slice by slice of time."""

    threads: int
    bytes_per_second: tuple[float, ...]


def memory_row(reading: Reading) -> CheckResult:
    """Judge the processor's memory: whether it is even. What a processor's memory should give nobody lists."""
    low, high = min(reading.bytes_per_second) / GB, max(reading.bytes_per_second) / GB
    middle = statistics.median(reading.bytes_per_second) / GB
    said = f"reads {middle:.1f} GB/s with {reading.threads} threads ({low:.1f} to {high:.1f})"
    if low < _UNEVEN * high:
        return warning("memory speed", f"{said}: uneven, so something else uses it or clocks change", "top")
    return ok("memory speed", said)


def gpu_memory_row() -> CheckResult:
    """Say that a GPU's own memory is not tried out."""
    return skipped("gpu memory speed", "not measured: --speed reads the processor's memory alone")
