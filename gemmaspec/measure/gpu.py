"""Clock, power and temperature of the GPUs while a cell is measured."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
from types import TracebackType
from typing import Any, Final

_FIELDS: Final = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
    "utilization.gpu": "utilization_percent",
}
_QUERY: Final = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_EVERY_S: Final = 2.0
_TIMEOUT_S: Final = 10.0


def read_gpus() -> list[dict[str, float]]:
    """One reading of each GPU, by name and unit; empty where nvidia-smi is not there or does not answer."""
    if not shutil.which("nvidia-smi"):
        return []
    try:
        done = subprocess.run(["nvidia-smi", *_QUERY], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return [_reading(line) for line in done.stdout.splitlines()[:64] if done.returncode == 0]


def _reading(line: str) -> dict[str, float]:
    """A line of nvidia-smi; what a GPU does not report, as a GB10 its memory's clock, is left out."""
    found: dict[str, float] = {}
    for name, text in zip(_FIELDS.values(), line.split(","), strict=False):
        try:
            found[name] = float(text.strip())
        except ValueError:
            continue
    return found


class Watch:
    """Reads the GPUs every two seconds, in a thread of its own, until it is left."""

    def __init__(self) -> None:
        self._readings: list[dict[str, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gemmaspec-gpu", daemon=True)
        self._there = shutil.which("nvidia-smi") is not None

    def __enter__(self) -> Watch:
        if self._there:
            self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        if self._there:
            self._thread.join(timeout=_TIMEOUT_S)

    def summary(self) -> dict[str, Any] | None:
        """The median, the lowest and the highest of each reading, over all GPUs; None without a GPU."""
        names = {name for one in self._readings for name in one}
        if not names:
            return None
        return {name: _range([one[name] for one in self._readings if name in one]) for name in sorted(names)}

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S if self._readings else 0.0):
            self._readings += read_gpus() or [{}]


def _range(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
