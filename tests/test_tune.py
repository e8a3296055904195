"""tune's decisions: which arm next, which cannot win, when to stop, what to choose; and against real grids."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gemmaspec import data
from gemmaspec.bench.cells import NONE
from gemmaspec.errors import UsageError
from gemmaspec.profile.load import load_profile
from gemmaspec.tune.arms import Arm, Field, field_of
from gemmaspec.tune.choose import Choice, choose
from gemmaspec.tune.plan import Done, Visit, next_visit, prompts_of, rule_out
from gemmaspec.tune.tried import Cell, Tried

Speed = Callable[[Arm, int], float]
"""Tokens per second of an arm at a load."""


@dataclass
class Machine:
    """A machine whose speeds are known, on which a tuning is played through."""

    speed: Speed
    loads: tuple[int, ...]
    prompts: tuple[int, ...] = (8, 16, 32)
    start_s: float = 60.0
    fails: frozenset[str] = frozenset()
    noise: float = 0.0
    seed: int = 0
    acceptance: Callable[[Arm], tuple[float, ...]] = lambda arm: tuple(0.7**i for i in range(1, arm.k + 1))
    visits: list[Visit] = field(default_factory=list)
    spent: float = 0.0
    tried: Tried | None = None
    done: Done | None = None

    def play(self, arms: Field, *, budget_s: float = 1e9, at_most: int = 10**6) -> Choice | None:
        """Tune until nothing is left, the budget ends or the visits are spent."""
        dice = random.Random(self.seed)  # noqa: S311 - a machine's noise that repeats itself
        tried = Tried(loads=self.loads, prompts=self.prompts)
        running: Arm | None = None
        for _ in range(at_most):
            visit = next_visit(tried, arms, running=running, left_s=budget_s - self.spent)
            if isinstance(visit, Done):
                self.done = visit
                break
            self.visits.append(visit)
            if running != visit.arm:
                self.spent += self.start_s
                starts = {**tried.starts, visit.arm.key: (*tried.starts.get(visit.arm.key, ()), self.start_s)}
                tried = replace(tried, starts=starts)
            if visit.arm.key in self.fails:
                tried, running = replace(tried, failed={**tried.failed, visit.arm.key: "the server died"}), None
                continue
            running = visit.arm
            for load in visit.loads:
                tried = replace(tried, cells=(*tried.cells, self._cell(tried, visit, load, dice)))
                self.spent += tried.cells[-1].seconds
            tried = rule_out(tried, arms)
        self.tried = tried
        return choose(tried, arms)

    def _cell(self, tried: Tried, visit: Visit, load: int, dice: random.Random) -> Cell:
        requests = tried.requests(visit.rung, load)
        speed = self.speed(visit.arm, load) * (1 + dice.gauss(0, self.noise))
        return Cell(
            arm=visit.arm.key,
            rung=visit.rung,
            load=load,
            tokens_per_second=speed,
            acceptance=self.acceptance(visit.arm),
            context=256,
            requests=requests,
            seconds=requests * 128 / speed + 5,
        )


# Real grids


def grid(file: str, compiled: str | None = None) -> dict[tuple[str, int], dict[int, Mapping[str, Any]]]:
    """A measured grid: (method, k) → requests at once → row; of two runs the mean."""
    found: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for row in json.loads((data.MEASUREMENTS / file).read_text())["rows"]:
        if compiled in (None, row["compile"]):
            own = found.setdefault((row["method"], row["k"]), {})
            before = own.get(row["concurrency"], row)
            mean = (before["tokens_per_second"] + row["tokens_per_second"]) / 2
            own[row["concurrency"]] = {**row, "tokens_per_second": mean}
    return found


def arms_of_grid(cells: Mapping[tuple[str, int], Any]) -> Field:
    """The arms of a grid, the middle k of each method first."""
    methods = dict.fromkeys(method for method, _ in cells if method != NONE)
    first, more = [], []
    for method in methods:
        own = sorted(k for name, k in cells if name == method)
        middle = own[len(own) // 2]
        first.append(Arm(profile=method, method=method, k=middle))
        more += [Arm(profile=method, method=method, k=k) for k in reversed(own) if k != middle]
    return Field(arms=(Arm(profile="own", method=NONE, k=0), *first, *more))


GRIDS = {
    "0.32.0": grid("h200-31b-nvfp4-0.32.0.json"),
    "0.26.0 compiled": grid("h200-31b-nvfp4.json", "default"),
}
REAL = [
    (name, loads)
    for name, cells in GRIDS.items()
    for number in (1, 2, 3)
    for loads in itertools.combinations(sorted(cells[(NONE, 0)]), number)
]


def machine_of(cells: Mapping[tuple[str, int], Any], loads: tuple[int, ...], **more: Any) -> Machine:
    return Machine(
        speed=lambda arm, load: cells[(arm.method, arm.k)][load]["tokens_per_second"],
        acceptance=lambda arm: tuple(cells[(arm.method, arm.k)][1]["acceptance"]),
        loads=loads,
        **more,
    )


def best_of(cells: Mapping[tuple[str, int], Any], loads: Sequence[int]) -> float:
    """The best score of the whole grid, among arms that are slower than no speculation nowhere."""
    alone = cells[(NONE, 0)]

    def score(own: Mapping[int, Any]) -> float:
        times = [own[load]["tokens_per_second"] / alone[load]["tokens_per_second"] for load in loads]
        product = 1.0
        for one in times:
            product *= one
        return product ** (1 / len(loads)) if min(times) >= 1 else 0.0

    return max(score(own) for own in cells.values() if set(loads) <= set(own))


def score_of(cells: Mapping[tuple[str, int], Any], arm: Arm, loads: Sequence[int]) -> float:
    return best_of({(NONE, 0): cells[(NONE, 0)], (arm.method, arm.k): cells[(arm.method, arm.k)]}, loads)


@pytest.mark.parametrize(("name", "loads"), REAL, ids=str)
def test_the_choice_is_within_2_percent_of_the_best_of_a_measured_grid(name: str, loads: tuple[int, ...]) -> None:
    cells = GRIDS[name]
    machine = machine_of(cells, loads)
    choice = machine.play(arms_of_grid(cells))
    assert choice
    chosen = cells[(choice.arm.method, choice.arm.k)]
    alone = cells[(NONE, 0)]
    assert all(chosen[load]["tokens_per_second"] >= alone[load]["tokens_per_second"] for load in loads)
    assert score_of(cells, choice.arm, loads) >= 0.98 * best_of(cells, loads)
    for row in choice.loads:
        best = max(own[row.concurrency]["tokens_per_second"] for own in cells.values())
        assert cells[(row.fastest.method, row.fastest.k)][row.concurrency]["tokens_per_second"] >= 0.98 * best


if __name__ == "__main__":
    import statistics
    for sigma in (0.0, 0.01):
      for name, loads in REAL:
        cells = GRIDS[name]
        worst = []; measured=[]; distinct=[]
        for seed in range(3 if sigma else 1):
            machine = machine_of(cells, loads, noise=sigma, seed=seed)
            choice = machine.play(arms_of_grid(cells))
            worst.append(score_of(cells, choice.arm, loads) / best_of(cells, loads))
            measured.append(len(machine.tried.cells)); distinct.append(len({(c.arm,c.load) for c in machine.tried.cells}))
        print(sigma, name, loads, round(min(worst),3), measured, distinct, len(cells)*len(loads), len(machine.visits), dict(machine.tried.ruled_out))
