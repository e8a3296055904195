"""When a server has to be ended before its machine runs out of memory and freezes. Pure.

On unified memory the GPU's allocations are the machine's. A DGX Spark that runs out of them does not kill a process: it
stops answering, ssh included, until somebody switches it off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

END_BELOW: Final = 0.02
"""Share of the memory that is left, in READINGS readings in a row: 2.4 GiB of a Spark's 119. Chosen, not measured."""
STALLED_BELOW: Final = 0.05
"""Share under which it is enough that every process stands still for STALLED of the time."""
STALLED: Final = 10.0
"""Percent of the last ten seconds in which all processes waited for memory (`full avg10`)."""
READINGS: Final = 2

_FULL: Final = re.compile(r"^full avg10=(\d{1,3}(?:\.\d{1,4})?) ", re.MULTILINE)
_ROW: Final = re.compile(r"^(MemTotal|MemAvailable):\s{1,40}(\d{1,15}) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One reading of a machine's memory, in bytes."""

    total: int
    available: int
    stalled: float | None = None
    """Percent of the last ten seconds in which all processes waited for memory; None if the kernel does not say."""


def memory_of(meminfo: str, pressure: str) -> Memory | None:
    """Return the reading in the texts of /proc/meminfo and /proc/pressure/memory; None without the first's figures."""
    rows = {name: int(kib) * 1024 for name, kib in _ROW.findall(meminfo)}
    if not rows.get("MemTotal") or "MemAvailable" not in rows:
        return None
    full = _FULL.search(pressure)
    return Memory(
        total=rows["MemTotal"],
        available=rows["MemAvailable"],
        stalled=float(full[1]) if full else None,
    )


def danger(readings: Sequence[Memory]) -> str:
    """Return why a server is to be ended now; "" while there is memory. The last reading is the newest."""
    if not readings:
        return ""
    now = readings[-1]
    share = now.available / now.total
    left = f"{now.available / 1e9:.1f} of {now.total / 1e9:.0f} GB of memory were left"
    stalled = now.stalled is not None and now.stalled >= STALLED
    if share < STALLED_BELOW and stalled:
        return f"{left}, and all processes waited for it {now.stalled:.0f} % of the time"
    lately = readings[-READINGS:]
    if len(lately) == READINGS and all(one.available < END_BELOW * one.total for one in lately):
        return left
    return ""
