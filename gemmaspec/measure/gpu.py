"""Clock, power and temperature of the GPUs while a cell is measured."""

from __future__ import annotations

import dataclasses
import statistics
import threading
from types import TracebackType
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.machine import nvidia

_EVERY_S: Final = 2.0
_TIMEOUT_S: Final = 10.0


class GpuWatch:
    """Reads the GPUs every two seconds in its own thread until the context ends."""

    def __init__(self) -> None:
        self._loads: list[nvidia.GpuReading] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gemmaspec-gpu", daemon=True)

    def __enter__(self) -> GpuWatch:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(timeout=_TIMEOUT_S)

    def summary(self) -> dict[str, Any] | None:
        """Return the median, minimum and maximum of each reading over all GPUs; None without a GPU."""
        ranges = {}
        for field in dataclasses.fields(nvidia.GpuReading):
            read = [getattr(load, field.name) for load in self._loads]
            values = [value for value in read if value is not None]
            if values:
                ranges[field.name] = _range(values)
        return ranges or None

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                loads = nvidia.loads()
            except EnvironmentMissing:
                return
            if not loads:
                return
            self._loads += loads
            self._over.wait(_EVERY_S)


def _range(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
