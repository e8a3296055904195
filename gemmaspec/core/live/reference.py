"""What speculation is worth: measured step times, and the acceptance of now."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.live.window import Window

PAYS_FROM: Final = 0.97
"""Share of the speed without speculation under which drafting costs more than it gives."""
_NEAR: Final = 2.0
"""A step time counts for up to this many times more or fewer requests than it was measured with."""
_MOVED: Final = 0.25
"""A window whose mean k is farther than this from a whole number had several, by speculative.k_by_requests."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Tokens per second of one request, as they are and as they would be without speculation."""

    k: int
    acceptance_length: float
    concurrency: int
    """Requests at once that the step times were measured with."""
    drafted: float
    alone: float


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Step times of this profile on this machine."""

    seconds: Mapping[tuple[int, int], float]
    """T(k, requests at once), k = 0 without speculation."""

    def gain(self, window: Window, running: float) -> Gain | None:
        """Return what a window's acceptance is worth; None where k moved, or no step time of its k and load is known.

        Only acceptance is taken from the window. Its speed would be wrong: prompts are read in between.
        """
        if window.k is None or window.acceptance_length is None or running <= 0:
            return None
        k = round(window.k)
        both = [at for drafted, at in self.seconds if drafted == k and (0, at) in self.seconds]
        near = min(both, key=lambda at: abs(math.log(at / running)), default=None)
        if not k or abs(window.k - k) > _MOVED or near is None or not 1 / _NEAR <= near / running <= _NEAR:
            return None
        return Gain(
            k=k,
            acceptance_length=window.acceptance_length,
            concurrency=near,
            drafted=window.acceptance_length / self.seconds[k, near],
            alone=1 / self.seconds[0, near],
        )


def slower(gain: Gain) -> str | None:
    """Return why speculation does not pay; None if it does."""
    if gain.drafted >= PAYS_FROM * gain.alone:
        return None
    return (
        f"acceptance length {gain.acceptance_length:.2f} at k = {gain.k} is worth {gain.drafted:.1f} tokens/s a "
        f"request, and {gain.alone:.1f} were measured without speculation ({gain.concurrency} at once)"
    )
