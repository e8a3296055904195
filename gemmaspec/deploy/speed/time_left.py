"""How long the rest of a run takes: its cells, and the starts of its servers."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence

from gemmaspec.bench.cells import Arm


class TimeLeft:
    """Learns from the cells and starts of this run."""

    def __init__(self, *, starts: bool) -> None:
        """`starts` says whether the run starts a server for each arm."""
        self._starts = starts
        self._running: Arm | None = None
        self._cells: list[float] = []
        self._started: list[float] = []

    @contextlib.contextmanager
    def starting(self, arm: Arm) -> Iterator[None]:
        """Time the start of an arm, unless its server already runs."""
        fresh, began = arm != self._running, time.monotonic()
        yield
        self._running = arm
        if fresh:
            self._started.append(time.monotonic() - began)

    def measured(self, seconds: float) -> None:
        """Note how long a cell took."""
        self._cells.append(seconds)

    def said(self, arms: Sequence[Arm]) -> str:
        """Return what is left after the first of `arms`, the arms of the cells in their order; "" for nothing."""
        cells = len(arms) - 1
        if not cells:
            return ""
        starts = sum(one != other for one, other in itertools.pairwise(arms)) if self._starts else 0
        minutes = cells * statistics.fmean(self._cells) / 60
        if starts and self._started:
            minutes += starts * statistics.fmean(self._started) / 60
        took = f"about {minutes:.0f} min" if minutes >= 1 else "under a minute"
        more = f" and {starts} server start{'s' if starts > 1 else ''}" if starts else ""
        return f"; {cells} left{more}, {took}"
