"""Readings for the guard of unified memory, and whether a profile wants it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gemmaspec.core.live.memory_guard import READINGS, Memory, danger, memory_of
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile


def wants_guard(profile: Profile) -> bool:
    """Return whether the guard is on: as `watch.memory_guard` says, else where the machine's memory is unified."""
    wished = profile.watch.memory_guard
    if wished is None:
        return MACHINES[profile.machine].unified
    return wished


def read_memory() -> Memory | None:
    """Return this machine's memory now; None if the kernel does not say."""
    with contextlib.suppress(OSError):
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
        pressure = ""
        with contextlib.suppress(OSError):  # a kernel without pressure stall information
            pressure = Path("/proc/pressure/memory").read_text(encoding="ascii", errors="replace")
        return memory_of(meminfo, pressure)
    return None


@dataclass
class MemoryGuard:
    """The last readings of this machine's memory."""

    read: Callable[[], Memory | None] = read_memory
    _readings: deque[Memory] = field(default_factory=lambda: deque(maxlen=READINGS))

    def danger(self) -> str:
        """Read the memory, and return why a server is to be ended now; "" while there is enough."""
        now = self.read()
        if now is None:
            return ""
        self._readings.append(now)
        return danger(tuple(self._readings))
