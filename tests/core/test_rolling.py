"""The rolling plan: every mix of replicas, every step that can fail, and what holds at every moment of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

import pytest

from gemmaspec.core.rolling.steps import (
    Action,
    End,
    Found,
    Outcome,
    Roll,
    RollEvent,
    RouterFound,
    Step,
    next_step,
    steps,
)


@dataclass
class World:
    """A model of what the steps act on."""

    runs: dict[str, str]
    """What each replica runs: old, new, or nothing at all."""
    inside: set[str]
    """To whom the router sends requests."""
    router: bool
    drained: set[str] = field(default_factory=set)

    def serving(self) -> set[str]:
        return {name for name in self.inside if name in self.runs} if self.router else set()

    def carry_out(self, step: Step, outcome: Outcome) -> None:
        """Do what a step does, and check that it may be done at all."""
        name = step.replica
        if step.action in ("replace", "stop"):
            assert name not in self.inside, "stopped while it gets requests"
            assert name in self.drained, "stopped before it was drained"
            self.runs.pop(name)
            if outcome != "failed" and step.action == "replace":
                self.runs[name] = "new" if outcome == "done" else "old"
        elif step.action == "drain":
            assert name not in self.inside
            self.drained.add(name)
        elif outcome == "done":
            self._change(step.action, name)

    def _change(self, action: Action, name: str) -> None:
        if action == "start":
            assert name not in self.runs
            self.runs[name] = "new"
        elif action == "router":
            self.router, self.inside = True, set()
        elif action == "add":
            assert self.router, "nothing to add it to"
            assert name in self.runs, "added without a server"
            self.inside.add(name)
        elif action == "remove":
            assert self.inside - {name}, "nobody is left to serve"
            self.inside.discard(name)


def world(roll: Roll) -> World:
    runs = {name: "new" if found == "same" else "old" for name, found in roll.replicas if found != "absent"}
    return World(runs=runs, inside=set(runs) if roll.router != "absent" else set(), router=roll.router != "absent")


def rolls() -> Iterator[Roll]:
    for size in (2, 3):
        for mix in itertools.product(get_args(Found), repeat=size):
            if sum(found != "surplus" for found in mix) < 2:
                continue  # one replica alone is no group
            for router in get_args(RouterFound):
                yield Roll(replicas=tuple((f"r{index}", found) for index, found in enumerate(mix)), router=router)


def play(roll: Roll, failure: int | None = None, how: Outcome = "failed") -> tuple[World, Sequence[RollEvent], End]:
    """Carry out a roll in which one step fails, and return how it ends."""
    state, events = world(roll), list[RollEvent]()
    for _ in range(60):
        step = next_step(roll, events)
        if isinstance(step, End):
            return state, events, step
        outcome: Outcome = how if len(events) == failure else "done"
        state.carry_out(step, outcome)
        events.append(RollEvent(step=step, outcome=outcome))
    raise AssertionError("it does not end")


def test_a_roll_without_failures_leaves_all_replicas_new_and_in_the_router() -> None:
    for roll in rolls():
        state, events, end = play(roll)
        wanted = {name for name, found in roll.replicas if found != "surplus"}
        assert end.failed is None
        assert state.runs == dict.fromkeys(wanted, "new")
        assert state.serving() == wanted
        assert tuple(event.step for event in events) == steps(roll)


def test_after_the_first_failure_nothing_else_is_changed_and_the_others_serve() -> None:
    for roll in rolls():
        for failure, step in enumerate(steps(roll)):
            for how in ("failed", "back") if step.action == "replace" else ("failed",):
                state, events, end = play(roll, failure, how)
                assert end.failed == step
                cleanup = [event.step for event in events[failure + 1 :]]
                assert all(one == Step(action="add", replica=step.replica) for one in cleanup), cleanup
                assert len(cleanup) <= 1
                before = {event.step.replica for event in events[:failure]} - {step.replica}
                planned_out = {name for name, found in roll.replicas if found == "surplus"}
                kept = {name for name in before if name in state.runs} - planned_out
                if state.router and step.action != "router":
                    assert kept - state.inside <= _not_yet_added(events, failure), (roll, step)


def _not_yet_added(events: Sequence[RollEvent], failure: int) -> set[str]:
    """Replicas whose turn to be added had not come."""
    added = {event.step.replica for event in events if event.step.action == "add" and event.outcome == "done"}
    return {event.step.replica for event in events[: failure + 1]} - added


def test_a_replica_whose_replacement_failed_is_back_in_the_router_only_if_it_runs() -> None:
    roll = Roll(replicas=(("r1", "changed"), ("r2", "changed"), ("r3", "changed")), router="same")
    at = next(index for index, step in enumerate(steps(roll)) if str(step) == "replace r2")
    state, _, end = play(roll, at, "back")
    assert state.serving() == {"r1", "r2", "r3"}
    assert state.runs == {"r1": "new", "r2": "old", "r3": "old"}
    assert (end.changed, end.back, end.untouched) == (("r1",), ("r2",), ("r3",))
    state, _, end = play(roll, at, "failed")
    assert state.serving() == {"r1", "r3"}
    assert (end.changed, end.back, end.untouched) == (("r1",), (), ("r3",))


@pytest.mark.parametrize("router", get_args(RouterFound))
def test_at_most_one_replica_is_out_of_the_router_while_others_are_replaced(router: RouterFound) -> None:
    for count in (2, 3, 4):
        roll = Roll(replicas=tuple((f"r{index}", "changed") for index in range(count)), router=router)
        state = world(roll)
        for index, step in enumerate(steps(roll)):
            state.carry_out(step, "done")
            ready = index >= steps(roll).index(Step(action="add", replica=f"r{count - 1}")) or router == "same"
            assert not ready or len(state.serving()) >= count - 1, step


def test_a_failed_canary_of_a_first_start_ends_it_before_the_others_start() -> None:
    roll = Roll(replicas=(("r1", "absent"), ("r2", "absent")), router="absent")
    assert [str(step) for step in steps(roll)] == ["start r1", "router", "add r1", "start r2", "add r2"]
    state, events, end = play(roll, 0)
    assert (state.runs, len(events), end.failed) == ({}, 1, Step(action="start", replica="r1"))


def test_a_router_that_died_is_started_before_any_replica_is_taken_out() -> None:
    roll = Roll(replicas=(("r1", "changed"), ("r2", "changed")), router="absent")
    assert [str(step) for step in steps(roll)][:4] == ["router", "add r1", "add r2", "remove r1"]


def test_what_does_not_run_is_started_before_what_serves_is_taken_out() -> None:
    roll = Roll(replicas=(("r1", "changed"), ("r2", "absent"), ("r3", "surplus")), router="same")
    said = [str(step) for step in steps(roll)]
    assert said == ["start r2", "add r2", "remove r1", "drain r1", "replace r1", "add r1", "remove r3", "drain r3",
                    "stop r3"]  # fmt: skip
