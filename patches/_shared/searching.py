"""The search for a kernel's fastest launch parameters, which finding those of prompts and of matrices share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

LAUNCHES = 5
ROUNDS = 3

Launch = tuple[Any, ...]
"""The parameters, as $GEMMASPEC_LAUNCHES has them."""


class Impossible(Exception):
    """It cannot be measured; the text says why."""


class Search:
    """The fastest launch that is right, tried until the time is over. None stands for the released launch."""

    def __init__(
        self,
        took: Callable[[Launch | None], float],
        apart: Callable[[Launch | None], float],
        bound: float,
        in_time: Callable[[], bool],
    ) -> None:
        self.took, self.apart, self.bound, self.in_time = took, apart, bound, in_time
        self.times: dict[Launch, float] = {}
        self.tried = self.wrong = self.failed = 0

    def attempt(self, launches: Iterable[Launch]) -> None:
        """Time those of these launches that are right."""
        for launch in launches:
            if not self.in_time():
                return
            self.tried += 1
            try:
                if self.apart(launch) <= self.bound:  # NaN is not
                    self.times[launch] = self.took(launch)
                else:
                    self.wrong += 1
            except Exception:  # Triton's and Humming's errors are of their own kinds: too much shared memory, no layout
                self.failed += 1

    @property
    def best(self) -> Launch | None:
        """The fastest right launch."""
        return min(self.times, key=self.times.__getitem__, default=None)

    def row(self, key: str) -> dict[str, Any]:
        """Return what was found: times of the released and of the best launch in turns, in one unit."""
        best = self.best
        turns = [(self.took(None), self.took(best)) for _ in range(ROUNDS)] if best else []
        counted = {"tried": self.tried, "wrong": self.wrong, "failed": self.failed}
        return {"key": key, "best": ",".join(map(str, best or ())), "turns": turns, **counted}


def gpu_ms(torch: Any, run: Callable[[], None]) -> float:
    """Return the median time of a launch in milliseconds, the first one, which compiles, left out."""
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(LAUNCHES):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    return sorted(times)[LAUNCHES // 2]


def timer(seconds: float) -> Callable[[], bool]:
    """Return a function that says whether the time is not over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end
