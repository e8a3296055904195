"""Which arm is tried next: successive halving over arms, within a budget.

The first rung asks every arm few prompts, but for those that a prediction from measured cells rules out. Each further
rung asks twice the prompts of the better half. What is decided follows from the cells alone, so that an interrupted
tuning goes on where it stopped.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemmaspec.check.predict.envelope import k_table
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.tune.arms import Field, with_knob, with_table
from gemmaspec.measure.tune.promise import cannot_win, hope
from gemmaspec.measure.tune.trials import Tried, Worth, ranked

DOUBT: Final = (0.08, 0.04)
"""How far behind an arm may be after each rung and still be measured again: relative, at the load where it is best."""
FEWEST: Final = 2
"""Drafting arms that a rung after the first measures, where so many are in doubt."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One arm to measure next, at the loads that are missing."""

    arm: Arm
    rung: int
    loads: tuple[int, ...]
    estimate: float | None
    """Seconds that it will take; None where nothing like it was tried."""
    left: int
    """Visits after it, as far as is known now."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """Nothing is left to try, or no time."""

    why: str
    complete: bool
    """Whether everything that was worth trying was tried."""


def rungs_of(each: int, rounds: int) -> tuple[int, ...]:
    """Return how many prompts of each category each rung asks: `each` in the last, half of them in the one before."""
    return tuple(max(1, math.ceil(each / 2**step)) for step in range(rounds - 1, -1, -1))


def next_visit(tried: Tried, field: Field, *, running: Arm | None, left_s: float) -> Visit | Done:
    """Return what to measure next. `running` is the arm whose server is up, and `left_s` the rest of the budget."""
    for rung in range(len(tried.prompts)):
        todo = list(_todo(tried, field, rung))
        if todo:
            arm = _first(tried, field, todo, rung, running)
            visit = Visit(
                arm=arm,
                rung=rung,
                loads=tried.missing(arm, rung),
                estimate=estimate(tried, arm, rung, running=running),
                left=len(todo) - 1,
            )
            if visit.estimate is not None and visit.estimate > left_s:
                return Done(why=_too_long(visit, left_s), complete=False)
            return visit
    return Done(why="every configuration that could win was tried", complete=True)


def rule_out(tried: Tried, field: Field) -> Tried:
    """Return the same with the arms ruled out that cannot win by what was measured until now."""
    ruled_out = dict(tried.ruled_out)
    for arm in _plain(tried, field):
        if not arm.alone and tried.missing(arm, 0) == tried.loads and (why := cannot_win(tried, arm, field.arms)):
            ruled_out[arm.key] = why
    return replace(tried, ruled_out=ruled_out)


def all_arms(tried: Tried, field: Field) -> tuple[Arm, ...]:
    """Return every arm there is by now: those of the field, then a table of k and the knobs of the best of them."""
    if list(_plain(tried, field)):
        return field.arms
    for worth in ranked(tried, field.arms, field.arms[0], rung=0):
        if not worth.arm.alone:
            leader = worth.arm
            knobs = [with_knob(leader, knob) for knob in field.knobs if knob.profile == leader.profile]
            return (*field.arms, *_table(tried, field, leader), *knobs)
    return field.arms


def _table(tried: Tried, field: Field, leader: Arm) -> Iterator[Arm]:
    """Yield the arm whose k follows the load, where the first rung says that this gains over the leader's k."""
    by_k = {arm.k: arm for arm in field.arms if arm.family == leader.family and arm.key not in tried.failed}
    speeds: dict[int, dict[int, float]] = {load: {} for load in tried.loads}
    for k, arm in by_k.items():
        rates = tried.rates(arm, 0)
        if rates:
            for load, rate in zip(tried.loads, rates, strict=True):
                speeds[load][k] = rate
    if leader.profile in field.tables and (table := k_table(speeds, leader.k)):
        yield with_table(by_k[max(table.values())], table)


def members(tried: Tried, field: Field, rung: int) -> list[Arm]:
    """Return the arms of a rung: of the first all, of another the target alone and the better half of the one before.

    Nothing where another look would choose nothing else: one arm is far ahead of all others, or none is worth it.
    """
    arms = all_arms(tried, field)
    alone = arms[0]
    if rung == 0:
        return [arm for arm in arms if arm.key not in tried.ruled_out]
    before = {arm.key for arm in members(tried, field, rung - 1)}
    in_order = ranked(tried, arms, alone, rung=rung - 1)
    contenders = [worth for worth in in_order if worth.arm.key in before and not worth.arm.alone]
    as_fast_as_alone = [1.0] * len(tried.loads)
    fastest = list(map(max, zip(as_fast_as_alone, *(worth.times for worth in contenders), strict=True)))
    kept = contenders[: max(FEWEST, math.ceil(len(contenders) / 2))]
    kept += [worth for worth in contenders if worth not in kept and _near(worth, fastest, 0)]
    doubt = DOUBT[min(rung, len(DOUBT)) - 1]
    rivals = [worth for worth in kept if _near(worth, fastest, doubt)]
    if not rivals or (len(rivals) == 1 and min(rivals[0].times) * (1 - doubt) > 1):
        return []
    return [alone, *(rival.arm for rival in rivals)]


def _near(worth: Worth, fastest: Sequence[float], doubt: float) -> bool:
    """Return whether an arm is the fastest at some load, or behind by no more than `doubt`."""
    return any(times >= best * (1 - doubt) for times, best in zip(worth.times, fastest, strict=True))


def last_rung(tried: Tried, field: Field) -> int:
    """Return the last rung whose arms were all measured, so that they can be compared; 0 where none is whole."""
    for rung in range(len(tried.prompts) - 1, 0, -1):
        running = [arm for arm in members(tried, field, rung) if arm.key not in tried.failed]
        if running and not any(tried.missing(arm, rung) for arm in running):
            return rung
    return 0


def estimate(tried: Tried, arm: Arm, rung: int, *, running: Arm | None) -> float | None:
    """Return the seconds of a visit, by what starts and cells took so far; None where nothing was tried."""
    start = 0.0 if arm == running else _start(tried, arm)
    if start is None or not tried.cells:
        return None
    return start + sum(_cell(tried, rung, load) for load in tried.missing(arm, rung))


def _todo(tried: Tried, field: Field, rung: int) -> Iterator[Arm]:
    """Yield the arms of a rung that are not measured at every load, and have not failed."""
    if rung == 0:
        plain = list(_plain(tried, field))
        yield from plain
        if plain:
            return
    for arm in members(tried, field, rung):
        if arm.key not in tried.failed and tried.missing(arm, rung):
            yield arm


def _plain(tried: Tried, field: Field) -> Iterator[Arm]:
    """Yield what the first rung still has to measure of the field itself."""
    for arm in field.arms:
        if arm.key not in tried.failed and arm.key not in tried.ruled_out and tried.missing(arm, 0):
            yield arm


def _first(tried: Tried, field: Field, todo: Sequence[Arm], rung: int, running: Arm | None) -> Arm:
    """Return which of a rung's arms comes next: a server that runs, then the target alone, then the most promising."""
    for arm in todo:
        if arm == running:
            return arm
    if rung or todo[0].alone:
        return todo[0]
    tried_already = {cell.arm for cell in tried.cells} | set(tried.failed)
    families = {arm.family for arm in field.arms if arm.key in tried_already}
    fresh = [arm for arm in todo if arm.family not in families]
    if fresh:
        return fresh[0]
    return max(todo, key=lambda arm: hope(tried, arm, field.arms))


def _start(tried: Tried, arm: Arm) -> float | None:
    """Seconds that a start will take: those of the arm, else of its method, else of any."""
    method = f"/{arm.method}/"
    for samples in (
        [seconds for key, seconds in tried.starts.items() if key == arm.key],
        [seconds for key, seconds in tried.starts.items() if method in key],
        list(tried.starts.values()),
    ):
        values = list(itertools.chain.from_iterable(samples))
        if values:
            return statistics.median(values)
    return None


def _cell(tried: Tried, rung: int, load: int) -> float:
    """Seconds of a cell: those of cells at that load, or of any, for each request."""
    cells = [cell for cell in tried.cells if cell.load == load] or list(tried.cells)
    each = statistics.median(cell.seconds / cell.requests for cell in cells)
    return each * tried.requests(rung, load)


def _too_long(visit: Visit, left_s: float) -> str:
    return (
        f"the budget ends: {visit.arm} would take about {minutes(visit.estimate or 0)}, "
        f"and {minutes(max(left_s, 0))} are left"
    )


def minutes(seconds: float) -> str:
    """Return a length of time as a sentence has it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
