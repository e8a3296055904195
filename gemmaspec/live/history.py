"""The recent samples of one server: enough to show the present and the last ten minutes."""

from __future__ import annotations

from collections import deque
from typing import Final

from gemmaspec.live.sample import Sample
from gemmaspec.live.window import Window, restarted, window

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
        first = next(one for one in self._samples if now.at - one.at <= seconds or one is self._samples[-2])
        return window(first if first is not now else self._samples[-2], now)
