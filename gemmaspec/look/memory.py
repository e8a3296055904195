"""The memory gate: what a stopped server held is given back before the next one starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import psutil

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.machine import nvidia

LONGEST_S: Final = 60.0
_POLL_S: Final = 1.0
_STILL: Final = 3
"""Readings in a row without growth after which nothing more comes back."""
_GROWTH: Final = 0.01
"""Share of this machine's memory; less than that is other programs' doing."""


def available() -> int:
    """Return the bytes that can be had: MemAvailable, and what the GPUs have free besides.

    On unified memory nvidia-smi reports none of the GPU's, and MemAvailable is all of it.
    """
    free = 0
    with contextlib.suppress(EnvironmentMissing):
        free = sum(gpu.free or 0 for gpu in nvidia.gpus())
    return int(psutil.virtual_memory().available) + free


def wait_released(
    note: Callable[[str], None],
    *,
    read: Callable[[], int] = available,
    longest_s: float = LONGEST_S,
    poll_s: float = _POLL_S,
) -> None:
    """Wait until no more memory comes back, at most `longest_s`, and say how much did.

    A dying server's memory returns over seconds on unified memory; a server that starts meanwhile finds too little.
    """
    began = time.monotonic()
    first = last = read()
    least = _GROWTH * int(psutil.virtual_memory().total)
    still = 0
    while still < _STILL:
        if time.monotonic() - began >= longest_s:
            note(f"memory is still being freed after {longest_s:.0f} s; starting anyway")
            return
        time.sleep(poll_s)
        now = read()
        still = still + 1 if now - last < least else 0
        last = now
    if last - first >= least:
        note(f"{(last - first) / 1e9:.1f} GB were freed in {time.monotonic() - began:.0f} s")
