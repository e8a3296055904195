"""How fast a machine reads its memory, judged: each token of a dense model reads all its weights."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.checkpoint.fields import printable
from gemmaspec.doctor.result import CheckResult, ok, skipped, warning

GB: Final = 10**9
GPU_ROW: Final = "gpu memory speed"
_UNEVEN: Final = 0.7
_SLOW: Final = 0.6
"""Share of the nominal bandwidth below which a GPU is slow. A copy never reaches all of it; how much a healthy one
reaches was not measured on each machine, so the bound is wide."""
_MOST: Final = 1e15


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


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """Rates of the first GPU copying its own memory, in bytes per second; a byte that is copied counts twice."""

    gpu: str
    bytes_per_second: tuple[float, ...]


def gpu_reading(said: Sequence[str]) -> GpuReading | str:
    """Return what launcher/gpu_speed.py measured, or why it did not: the last line of its stderr."""
    try:
        found = json.loads(said[-1])
        if problem := found.get("problem"):
            return printable(str(problem))
        rates = tuple(float(rate) for rate in found["bytes_per_second"])
        if not rates or not all(0 < rate < _MOST for rate in rates):
            return "it printed impossible rates"
        return GpuReading(gpu=printable(str(found["gpu"]), 80), bytes_per_second=rates)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return printable(said[-1]) if said else "it printed nothing"


def gpu_memory_row(reading: GpuReading, nominal_gb_s: float | None) -> CheckResult:
    """Judge a GPU's memory against what its machine should give, in 10^9 bytes per second."""
    low, high = min(reading.bytes_per_second) / GB, max(reading.bytes_per_second) / GB
    middle = statistics.median(reading.bytes_per_second) / GB
    of = f", {middle / nominal_gb_s:.0%} of the {nominal_gb_s:.0f} that it should give" if nominal_gb_s else ""
    said = f"{reading.gpu} copies {middle:.0f} GB/s ({low:.0f} to {high:.0f}){of}"
    if nominal_gb_s and middle < _SLOW * nominal_gb_s:
        fix = "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE"
        return warning(GPU_ROW, f"{said}: another program uses it, or it is in a slow state", fix)
    if low < _UNEVEN * high:
        return warning(GPU_ROW, f"{said}: uneven, so something else uses it or clocks change", "nvidia-smi dmon")
    return ok(GPU_ROW, said)


def gpu_not_measured(why: str) -> CheckResult:
    """Return that a GPU's memory was not measured, and why."""
    return skipped(GPU_ROW, f"not measured: {why}")
