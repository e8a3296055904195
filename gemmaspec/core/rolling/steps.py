"""The steps of a rolling change, as a state machine: what was found, what has happened, what comes next.

Nothing here touches a server. serve/roll.py carries out each step and says how it ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Found = Literal["same", "absent", "changed", "surplus"]
"""A replica before the change: it runs as it should; it does not run; it runs another configuration; it runs, but the
profile has fewer replicas."""

RouterFound = Literal["same", "absent", "changed"]

Action = Literal["probe", "start", "router", "add", "remove", "drain", "replace", "stop"]
"""
probe    send a request to a replica that runs unchanged
start    start a replica that does not run, until it has drafted, verified and answered
router   start the router, or start it again with another configuration
add      have the router send requests to a replica; nothing changes if it already does
remove   have the router send no new requests to a replica
drain    wait until a replica has no requests left, within a bound
replace  stop a replica and start it with the new configuration, until it has drafted, verified and answered
stop     stop a replica for good
"""

Outcome = Literal["done", "failed", "back"]
"""back: a replacement failed, and the replica runs again as before."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step."""

    action: Action
    replica: str = ""
    """The replica that it is about; '' for the router."""

    def __str__(self) -> str:
        return f"{self.action} {self.replica}".strip()


@dataclass(frozen=True, kw_only=True)
class Roll:
    """What was found before the first step."""

    replicas: tuple[tuple[str, Found], ...]
    router: RouterFound


@dataclass(frozen=True, kw_only=True)
class RollEvent:
    """A step that was carried out, and how it ended."""

    step: Step
    outcome: Outcome = "done"


@dataclass(frozen=True, kw_only=True)
class End:
    """Nothing is left to do."""

    failed: Step | None = None
    """The first step that failed."""
    changed: tuple[str, ...] = ()
    """Replicas that were started or replaced."""
    untouched: tuple[str, ...] = ()
    """Replicas that still run what they ran before."""
    back: tuple[str, ...] = ()
    """Replicas that were replaced without success, and run again as before."""


def steps(roll: Roll) -> tuple[Step, ...]:
    """Return every step of a change in which nothing fails.

    What runs unchanged comes first, then what does not run, and only then a replica is taken out of service: by that
    time all others serve. The first replica that is started or replaced is the canary of the rest.
    """
    return tuple(_steps(roll))


def next_step(roll: Roll, events: Sequence[RollEvent]) -> Step | End:
    """Return what comes after these events. The first failure ends the change, after its own cleanup."""
    planned = steps(roll)
    for index, event in enumerate(events):
        if event.outcome != "done":
            after = _cleanup(event)
            done = len(events) - index - 1
            if done < len(after):
                return after[done]
            return _end(roll, events, failed=event)
    if len(events) < len(planned):
        return planned[len(events)]
    return _end(roll, events, failed=None)


def interrupted(roll: Roll, events: Sequence[RollEvent], last: RollEvent) -> End:
    """Return how a change ends whose last step was interrupted, by Ctrl-C or by SIGTERM."""
    return _end(roll, [*events, last], failed=last)


def _steps(roll: Roll) -> Iterator[Step]:
    named: dict[Found, list[str]] = {kind: [] for kind in _KINDS}
    for name, state in roll.replicas:
        named[state].append(name)
    routed = roll.router == "same"
    for name in named["same"]:
        yield Step(action="probe", replica=name)
    if routed:
        serving = named["same"]
    else:
        serving = [*named["same"], *named["changed"], *named["surplus"]]
    if serving and not routed:
        yield Step(action="router")
        routed = True
    for name in serving:
        yield Step(action="add", replica=name)
    for name in named["absent"]:
        yield Step(action="start", replica=name)
        if not routed:
            yield Step(action="router")
            routed = True
        yield Step(action="add", replica=name)
    for name in named["changed"]:
        for action in _REPLACING:
            yield Step(action=action, replica=name)
    for name in named["surplus"]:
        for action in _ENDING:
            yield Step(action=action, replica=name)


_KINDS: tuple[Found, ...] = ("same", "absent", "changed", "surplus")
_REPLACING: tuple[Action, ...] = ("remove", "drain", "replace", "add")
_ENDING: tuple[Action, ...] = ("remove", "drain", "stop")


def _cleanup(failed: RollEvent) -> tuple[Step, ...]:
    """Return what is done after a failed step: a replica that still serves goes back into the router."""
    serves = failed.step.action in ("remove", "drain") or failed.outcome == "back"
    if serves:
        return (Step(action="add", replica=failed.step.replica),)
    return ()


def _end(roll: Roll, events: Sequence[RollEvent], *, failed: RollEvent | None) -> End:
    done = [event.step for event in events if event.outcome == "done"]
    changed = tuple(step.replica for step in done if step.action in ("start", "replace"))
    stopped = {step.replica for step in done if step.action == "stop"}
    back = tuple(event.step.replica for event in events if event.outcome == "back")
    broken = [event.step for event in events if event.outcome == "failed"]
    lost = {step.replica for step in broken if step.action == "replace"}
    ran = [name for name, state in roll.replicas if state != "absent"]
    touched = {*changed, *stopped, *back, *lost}
    untouched = tuple(name for name in ran if name not in touched)
    return End(failed=failed.step if failed else None, changed=changed, untouched=untouched, back=back)
