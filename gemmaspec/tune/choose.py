"""What is chosen of everything that was tried, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.bench.cells import Arm
from gemmaspec.predict.envelope import GAIN
from gemmaspec.tune.arms import Field
from gemmaspec.tune.next_arm import all_arms, last_rung, members
from gemmaspec.tune.tried import Tried, Worth, worth

TIE: Final = 0.01
"""Arms so near to the best count as equal to it: the smaller k, less memory and fewer patches decide then."""


@dataclass(frozen=True, kw_only=True)
class Load:
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
class Choice:
    """The answer of a tuning."""

    arm: Arm
    worth: Worth
    why: str
    loads: tuple[Load, ...]


def choose(tried: Tried, field: Field) -> Choice | None:
    """Return the best arm that is slower than no speculation at no load; None before anything was compared.

    The arms of the last whole rung are compared, by what they did there. No speculation is an answer like any other.
    """
    arms = all_arms(tried, field)
    alone, rung = arms[0], last_rung(tried, field)
    finalists = [one for arm in members(tried, field, rung) if (one := worth(tried, arm, alone, rung=rung))]
    base = worth(tried, alone, alone, rung=rung)
    if base is None or (len(finalists) < 2 and not _all_failed(tried, field)):
        return None
    tables = [one for one in finalists if one.arm.table]
    finalists = [one for one in finalists if not one.arm.table]
    fair = [one for one in finalists if min(one.times) >= 1]
    best = max(fair, key=lambda one: one.score)
    equal = [one for one in fair if one.score >= best.score * (1 - TIE)]
    chosen = min(equal, key=_modesty)
    single, why = chosen, _why(tried, finalists, chosen, best)
    for one in tables:
        if gained := table_gains(tried.loads, one, single):
            chosen, why = one, f"{one.score:.2f} times the speed without speculation, over {_loads(tried)}; {gained}"
    everything = [one for arm in arms if (one := _as_in(tried, arm, chosen, base))]
    loads = tuple(_load(tried, everything, chosen, base, place) for place in range(len(tried.loads)))
    return Choice(arm=chosen.arm, worth=chosen, why=why, loads=loads)


def table_gains(loads: Sequence[int], table: Worth, single: Worth) -> str | None:
    """Say what a measured table gains over the best single arm; None where it gains too little or loses at a load."""
    ratios = [own / other for own, other in zip(table.times, single.times, strict=True)]
    gain, load = max(zip(ratios, loads, strict=True))
    if gain <= 1 + GAIN or min(ratios) < 1 - TIE or min(table.times) < 1:
        return None
    return f"{gain - 1:.0%} over {single.arm} at {load} at once, and behind it at none"


def _all_failed(tried: Tried, field: Field) -> bool:
    return all(arm.alone or arm.key in tried.failed for arm in field.arms)


def _as_in(tried: Tried, arm: Arm, chosen: Worth, base: Worth) -> Worth | None:
    """Return an arm as it would stand in the rung of the chosen one, by the last rung in which both were measured."""
    for rung in range(chosen.rung, -1, -1):
        own, other = (worth(tried, one, base.arm, rung=rung) for one in (arm, chosen.arm))
        if own and other:
            times = tuple(a * b / c for a, b, c in zip(own.times, chosen.times, other.times, strict=True))
            rates = tuple(one * rate for one, rate in zip(times, base.rates, strict=True))
            return Worth(arm=arm, rung=rung, rates=rates, times=(1.0,) * len(times) if arm.alone else times)
    return None


def _modesty(one: Worth) -> tuple[int, int, int, float]:
    return one.arm.k, one.arm.memory, one.arm.required, -one.score


def _load(tried: Tried, found: Sequence[Worth], chosen: Worth, base: Worth, place: int) -> Load:
    family = [one for one in found if one.arm.alone or one.arm.family == chosen.arm.family]
    best, fastest = _modest(family, place), _modest(found, place)
    return Load(
        concurrency=tried.loads[place],
        k=best.arm.at(tried.loads[place]),
        tokens_per_second=best.times[place] * base.rates[place],
        times=best.times[place],
        fastest=fastest.arm,
        fastest_times=fastest.times[place],
    )


def _modest(found: Sequence[Worth], place: int) -> Worth:
    """Return the best at one load, by the rule for ties."""
    top = max(one.times[place] for one in found)
    return min((one for one in found if one.times[place] >= top * (1 - TIE)), key=_modesty)


def _why(tried: Tried, found: Sequence[Worth], chosen: Worth, best: Worth) -> str:
    """Say in one sentence why it was chosen."""
    drafting = [one for one in found if not one.arm.alone]
    if not drafting:
        return "no server with speculation started"
    first = max(drafting, key=lambda one: one.score)
    unfair = min(first.times) < 1 < first.score and first is not best
    slower = f"{first.arm} is faster over all, and {_slower(tried, first)}" if unfair else ""
    if chosen.arm.alone:
        nothing = f"nothing that drafts is more than {TIE:.0%} faster: {first.arm} reaches {first.score:.2f} times"
        return slower or f"{nothing} the speed without speculation"
    said = f"{chosen.score:.2f} times the speed without speculation, over {_loads(tried)}"
    if chosen is not best:
        return f"{said}; {best.arm} is within {TIE:.0%} of it, with {_more(chosen, best)}"
    return f"{said}; {slower}" if slower else said


def _slower(tried: Tried, one: Worth) -> str:
    times, load = min(zip(one.times, tried.loads, strict=True))
    return f"slower than no speculation at {load} at once ({times:.2f} times)"


def _more(chosen: Worth, other: Worth) -> str:
    if other.arm.k != chosen.arm.k:
        return "a larger k"
    return "more memory" if other.arm.memory != chosen.arm.memory else "more patches"


def _loads(tried: Tried) -> str:
    shown = [str(one) for one in tried.loads]
    return f"{', '.join(shown[:-1])} and {shown[-1]} at once" if len(shown) > 1 else f"{shown[0]} at once"
