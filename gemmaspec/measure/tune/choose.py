"""What is chosen of everything that was tried, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.predict.envelope import GAIN
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.tune.arms import Field
from gemmaspec.measure.tune.next_arm import all_arms, last_rung, members
from gemmaspec.measure.tune.trials import Tried, Worth, worth

TIE: Final = 0.01
"""Arms so near to the best count as equal to it: the smaller k, less memory and fewer patches decide then."""


@dataclass(frozen=True, kw_only=True)
class BestAtLoad:
    """A row of the k table: what is best at one number of requests at once."""

    concurrency: int
    k: int
    """The best k of the chosen arm's family; 0 for no speculation."""
    tokens_per_second: float
    times: float
    """Over no speculation."""
    fastest: Arm
    """The best of all arms there."""
    fastest_times: float


@dataclass(frozen=True, kw_only=True)
class TuneChoice:
    """The answer of a tuning."""

    arm: Arm
    worth: Worth
    why: str
    loads: tuple[BestAtLoad, ...]


def choose(tried: Tried, field: Field) -> TuneChoice | None:
    """Return the best arm that is slower than no speculation at no load; None before anything was compared.

    The arms of the last whole rung are compared, by what they did there. No speculation is an answer like any other.
    """
    arms = all_arms(tried, field)
    alone, rung = arms[0], last_rung(tried, field)
    measured = [worth(tried, arm, alone, rung=rung) for arm in members(tried, field, rung)]
    finalists = [finalist for finalist in measured if finalist]
    base = worth(tried, alone, alone, rung=rung)
    if base is None or (len(finalists) < 2 and not all(arm.alone or arm.key in tried.failed for arm in field.arms)):
        return None
    tables = [finalist for finalist in finalists if finalist.arm.table]
    finalists = [finalist for finalist in finalists if not finalist.arm.table]
    fair = [finalist for finalist in finalists if min(finalist.times) >= 1]
    best = max(fair, key=lambda finalist: finalist.score)
    equal = [finalist for finalist in fair if finalist.score >= best.score * (1 - TIE)]
    chosen = min(equal, key=_modesty)
    single, why = chosen, _why(tried, finalists, chosen, best)
    for table in tables:
        if gained := table_gains(tried.loads, table, single):
            chosen = table
            why = f"{table.score:.2f} times the speed without speculation, over {_loads(tried)}; {gained}"
    compared = [_as_in(tried, arm, chosen, base) for arm in arms]
    everything = [one for one in compared if one]
    loads = tuple(_load(tried, everything, chosen, base, place) for place in range(len(tried.loads)))
    return TuneChoice(arm=chosen.arm, worth=chosen, why=why, loads=loads)


def table_gains(loads: Sequence[int], table: Worth, single: Worth) -> str | None:
    """Say what a measured table gains over the best single arm; None where it gains too little or loses at a load."""
    ratios = [tuned / other for tuned, other in zip(table.times, single.times, strict=True)]
    gain, load = max(zip(ratios, loads, strict=True))
    if gain <= 1 + GAIN or min(ratios) < 1 - TIE or min(table.times) < 1:
        return None
    return f"{gain - 1:.0%} over {single.arm} at {load} at once, and behind it at none"


def _as_in(tried: Tried, arm: Arm, chosen: Worth, base: Worth) -> Worth | None:
    """Return an arm as it would stand in the rung of the chosen one, by the last rung in which both were measured."""
    for rung in range(chosen.rung, -1, -1):
        mine = worth(tried, arm, base.arm, rung=rung)
        other = worth(tried, chosen.arm, base.arm, rung=rung)
        if mine and other:
            times = tuple(a * b / c for a, b, c in zip(mine.times, chosen.times, other.times, strict=True))
            rates = tuple(times_base * rate for times_base, rate in zip(times, base.rates, strict=True))
            return Worth(arm=arm, rung=rung, rates=rates, times=(1.0,) * len(times) if arm.alone else times)
    return None


def _modesty(worth: Worth) -> tuple[int, int, int, float]:
    return worth.arm.k, worth.arm.memory, worth.arm.required, -worth.score


def _load(tried: Tried, worths: Sequence[Worth], chosen: Worth, base: Worth, place: int) -> BestAtLoad:
    family = [worth for worth in worths if worth.arm.alone or worth.arm.family == chosen.arm.family]
    best, fastest = _modest(family, place), _modest(worths, place)
    load = tried.loads[place]
    return BestAtLoad(
        concurrency=load,
        k=best.arm.at(load),
        tokens_per_second=best.times[place] * base.rates[place],
        times=best.times[place],
        fastest=fastest.arm,
        fastest_times=fastest.times[place],
    )


def _modest(worths: Sequence[Worth], place: int) -> Worth:
    """Return the best at one load, by the rule for ties."""
    top = max(worth.times[place] for worth in worths)
    return min((worth for worth in worths if worth.times[place] >= top * (1 - TIE)), key=_modesty)


def _why(tried: Tried, worths: Sequence[Worth], chosen: Worth, best: Worth) -> str:
    """Say in one sentence why it was chosen."""
    drafting = [worth for worth in worths if not worth.arm.alone]
    if not drafting:
        return "no server with speculation started"
    first = max(drafting, key=lambda drafter: drafter.score)
    unfair = min(first.times) < 1 < first.score and first is not best
    if unfair:
        slower = f"{first.arm} is faster over all, and {_slower(tried, first)}"
    else:
        slower = ""
    if chosen.arm.alone:
        nothing = f"nothing that drafts is more than {TIE:.0%} faster: {first.arm} reaches {first.score:.2f} times"
        return slower or f"{nothing} the speed without speculation"
    gain = f"{chosen.score:.2f} times the speed without speculation, over {_loads(tried)}"
    if chosen is not best:
        return f"{gain}; {best.arm} is within {TIE:.0%} of it, with {_more(chosen, best)}"
    if slower:
        return f"{gain}; {slower}"
    return gain


def _slower(tried: Tried, worth: Worth) -> str:
    times, load = min(zip(worth.times, tried.loads, strict=True))
    return f"slower than no speculation at {load} at once ({times:.2f} times)"


def _more(chosen: Worth, other: Worth) -> str:
    if other.arm.k != chosen.arm.k:
        return "a larger k"
    if other.arm.memory != chosen.arm.memory:
        return "more memory"
    return "more patches"


def _loads(tried: Tried) -> str:
    shown = [str(load) for load in tried.loads]
    if len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]} at once"
    return f"{shown[0]} at once"
