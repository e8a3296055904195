"""What a tuning has tried so far, and what each arm is worth by it.

What a tuning is asked for.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.bench.settings import Asked

_PART: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([hms])")


@dataclass(frozen=True, kw_only=True)
class TuneRequest(Asked):
    """What is to be tuned."""

    COMMAND = "tune"
    FREE = Asked.FREE | {"budget_s", "name"}

    budget_s: float
    each: int = 4
    rounds: int = 3
    """Rungs at most."""
    arms: tuple[str, ...] = ()
    """The other named profiles."""
    others: bool = True
    """Whether shipped profiles of its target and machine are compared too."""
    tries: tuple[str, ...] = ()
    """What is to be tried on the fastest arm, as KEY=VALUE."""
    loads: tuple[int, ...] = ()
    out: Path | None = None
    name: str | None = None


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a length of time such as 45m, 1h30m or 90s. Raises UsageError for anything else."""
    whole = "".join(text.split())
    parts = _PART.findall(whole)
    if not parts or "".join(map("".join, parts)) != whole:
        raise UsageError(f"{option} must be a time such as 45m, 1h30m or 90s, not {text!r}", hint=f"{option} 45m")
    seconds = sum(float(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"{option} must be greater than 0", hint=f"{option} 45m")
    return seconds


@dataclass(frozen=True, kw_only=True)
class TriedCell:
    """One measured cell of one arm."""

    arm: str
    """Its key."""
    rung: int
    """From 0; each rung asks more prompts than the one before."""
    load: int
    """Requests at once."""
    tokens_per_second: float
    """Of all requests together."""
    acceptance: tuple[float, ...] = ()
    """r_1 … r_k."""
    context: int = 0
    """Tokens of prompt, the median."""
    step_ms: float = 0.0
    """Time of a step, reading prompts left out."""
    requests: int = 1
    seconds: float = 0.0
    """What measuring it took, warm-up and reference steps included."""
    steady: bool = True
    """Whether the machine was the same before and after."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Everything that decisions rest on."""

    loads: tuple[int, ...]
    """Requests at once, each a cell of every arm."""
    prompts: tuple[int, ...]
    """Prompts of each rung; as many rungs as there are."""
    cells: tuple[TriedCell, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Arms that did not start, or whose server died, and why."""
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    """Arms that cannot win by what was measured of others, and why; they are not tried."""
    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds that each arm's starts took."""

    @property
    def kept(self) -> str:
        """What is kept, as a sentence has it."""
        if len(self.cells) == 1:
            return "1 measured cell is kept"
        return f"{len(self.cells)} measured cells are kept"

    def requests(self, rung: int, load: int) -> int:
        """Requests of a cell."""
        return max(2 * load if load > 1 else 0, self.prompts[rung])

    def rate(self, arm: Arm, rung: int, load: int) -> float | None:
        """Tokens per second of an arm; None where it was not measured. Cells of a steady machine count first."""
        cells = [cell for cell in self.cells if (cell.arm, cell.rung, cell.load) == (arm.key, rung, load)]
        steady = [cell for cell in cells if cell.steady] or cells
        if steady:
            return statistics.median(cell.tokens_per_second for cell in steady)
        return None

    def rates(self, arm: Arm, rung: int) -> tuple[float, ...] | None:
        """Tokens per second at every load; None where one is missing."""
        rates = [self.rate(arm, rung, load) for load in self.loads]
        if None not in rates:
            return tuple(rate for rate in rates if rate is not None)
        return None

    def missing(self, arm: Arm, rung: int) -> tuple[int, ...]:
        """Loads at which an arm was not measured yet."""
        return tuple(load for load in self.loads if self.rate(arm, rung, load) is None)


@dataclass(frozen=True, kw_only=True)
class Worth:
    """An arm against no speculation, with the same prompts in the same rung."""

    arm: Arm
    rung: int
    rates: tuple[float, ...]
    """Tokens per second at every load."""
    times: tuple[float, ...]
    """The same over no speculation."""

    @property
    def score(self) -> float:
        """The geometric mean over the loads: each counts the same."""
        return math.exp(statistics.fmean(math.log(time) for time in self.times))


def worth(tried: Tried, arm: Arm, alone: Arm, *, rung: int | None = None) -> Worth | None:
    """Return what an arm is worth by the highest rung in which it and the target alone were measured at every load.

    None where there is no such rung, or the arm failed; `rung` names one.
    """
    if arm.key in tried.failed:
        return None
    for number in range(len(tried.prompts) - 1, -1, -1) if rung is None else [rung]:
        rates, base = tried.rates(arm, number), tried.rates(alone, number)
        if rates and base:
            times = tuple(rate / other for rate, other in zip(rates, base, strict=True))
            return Worth(arm=arm, rung=number, rates=rates, times=times)
    return None


def ranked(tried: Tried, arms: Sequence[Arm], alone: Arm, *, rung: int | None = None) -> list[Worth]:
    """Return every arm that can be compared, the best first."""
    worths = []
    for arm in arms:
        if found := worth(tried, arm, alone, rung=rung):
            worths.append(found)
    return sorted(worths, key=lambda found: -found.score)
