"""Carry out a rolling change, step by step: rolling/steps.py says what comes next, and this does it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.core.rolling.steps import End, Outcome, Roll, RollEvent, Step, interrupted, next_step
from gemmaspec.run.engine import router as routers
from gemmaspec.run.engine.routing import RouterPlace
from gemmaspec.run.kept import groups, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.stack_lock import StartProgress, Told
from gemmaspec.run.ready.first_request import LOOK_S, api_key_for, read_metrics
from gemmaspec.run.ready.phases import Phase
from gemmaspec.serve import put_back, rollback
from gemmaspec.serve.starting import Running

_SETTLE_S: Final = 1.0
"""How long a request takes, at most, from the router's choice until the replica counts it."""
_POLL_S: Final = 0.25
_HEALTHY_S: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class Rolled:
    """A rolling change that has ended well."""

    group: Group
    running: dict[str, Running]
    """Each replica that was queried, started or replaced."""
    end: End


@dataclass(kw_only=True)
class Rolling:
    """One rolling change of a group."""

    group: Group
    roll: Roll
    before: Group | None
    """The group as it was; None at the first start."""
    command: str
    told: Told
    serve: Callable[[str, StartProgress], Running]
    """Start, replace or ask one replica."""
    running: dict[str, Running] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    """Replicas whose server is another one than before."""
    said: set[str] = field(default_factory=set)
    """What was noted of a replica, which is not repeated for the next one."""
    error: GemmaspecError | None = None
    """Why the first step failed."""
    settle_s: float = _SETTLE_S
    healthy_s: float = _HEALTHY_S
    poll_s: float = _POLL_S
    ran: Mapping[str, str | None] = field(default_factory=dict)
    """What each replica ran before the first step, as a key of its known good stacks; None for one never ready."""

    def carry_out(self) -> Rolled:
        """Do every step. Raises the first failure, with what serves now."""
        events: list[RollEvent] = []
        self.ran = {name: rollback.current(name) for name, _ in self.roll.replicas}
        while isinstance(step := next_step(self.roll, events), Step):
            try:
                outcome = self._do(step)
            except BaseException:
                self._interrupted(events, step)
                raise
            events.append(RollEvent(step=step, outcome=outcome))
        if self.error:
            groups.save(self._as_it_is_now(events, step))
            raise self._with_outlook(self.error, step)
        return Rolled(group=self.group, running=self.running, end=step)

    def _interrupted(self, events: list[RollEvent], step: Step) -> None:
        """After Ctrl-C or SIGTERM: let every replica that serves get requests again, and say what each one runs."""
        end = interrupted(self.roll, events, RollEvent(step=step, outcome=self._after_interrupt(step)))
        with contextlib.suppress(GemmaspecError):
            groups.save(self._as_it_is_now(events, end))
        for name in put_back.put_back(self.group):
            self._audit(Step(action="add", replica=name), "put back")
        for line in self._configurations(end):
            self.told.note(line)

    def _after_interrupt(self, step: Step) -> Outcome:
        """Return what an interrupted step has left: the server that it was to leave, the one before it, or none."""
        if step.action not in ("start", "replace") or not self._serves(step.replica):
            return "failed"
        ran = self.ran.get(step.replica)
        if step.action == "replace" and ran and rollback.current(step.replica) == ran:
            return "back"
        return "done"

    def _as_it_is_now(self, events: list[RollEvent], end: End) -> Group:
        """Return the record after a failure: with the router that runs, and the change only if it changed a replica."""
        group, before = self.group, self.before
        if before is None:
            return group
        routed = self.roll.router == "same" or RollEvent(step=Step(action="router")) in events
        group = dataclasses.replace(group, router=group.router if routed else before.router)
        if end.changed:
            return group
        kept = ("before", "options", "options_before", "complete")
        return dataclasses.replace(group, **{name: getattr(before, name) for name in kept})

    def _do(self, step: Step) -> Outcome:
        """Do one step, write its line into the audit, and return how it ended."""
        self.told.doing(str(step))
        began = time.monotonic()
        outcome: Outcome = "done"
        try:
            outcome_line = self._act(step)
        except GemmaspecError as error:
            self.error = self.error or error
            if step.action == "replace" and self._serves(step.replica):
                outcome = "back"
            else:
                outcome = "failed"
            outcome_line = error.message.splitlines()[0]
        except BaseException:
            self._audit(step, "interrupted")
            raise
        seconds = time.monotonic() - began
        self._audit(step, f"{outcome} after {seconds:.1f} s{f': {outcome_line}' if outcome_line else ''}")
        return outcome

    def _audit(self, step: Step, result: str) -> None:
        """Write a line into the audit. A full disk does not keep a replica out of the router."""
        try:
            groups.write_audit(self.group.name, self.command, str(step), result)
        except GemmaspecError as error:
            self.told.note(f"warning: {error.message}")

    def _act(self, step: Step) -> str:
        match step.action:
            case "probe" | "start" | "replace":
                if step.action != "probe":
                    self.fresh.add(step.replica)
                self.running[step.replica] = self.serve(step.replica, _Named(step.replica, self.told, self.said))
                return ""
            case "router":
                return self._router()
            case "add":
                return self._add(step.replica)
            case "remove":
                return self._remove(step.replica)
            case "drain":
                return self._drain(step.replica)
            case "stop":
                from gemmaspec.serve.down import down

                down(step.replica, self.told.note)
                return ""

    def _router(self) -> str:
        """Start the router; one with another configuration is ended first, and started again if the new one fails."""
        old = self.before.router if self.before else None
        if old and routers.state(old).status == "running":
            self.told.note("starting the router with its new configuration; requests that go through it now are cut")
            routers.stop(old)
        try:
            routers.start(self.group.router)
        except GemmaspecError as error:
            if old and self._runs_again(old):
                raise error.amended(f"{error.message}\nThe router runs again as before.") from None
            raise
        except BaseException:
            if old:
                self._runs_again(old)
            raise
        router = self.group.router
        self.told.note(f"router listens at {router.base_url}/v1")
        return f"haproxy, {router.policy}, port {router.port}"

    def _runs_again(self, old: routers.RouterServer) -> bool:
        with contextlib.suppress(GemmaspecError):
            routers.start(old)
            for name, state in self.roll.replicas:
                if state != "absent":
                    old.routing.add(self._place(name))
            return True
        return False

    def _add(self, name: str) -> str:
        """Add a replica, and wait until the router has seen that it is well."""
        routing, place = self.group.router.routing, self._place(name)
        if name in self.fresh:
            routing.remove(place)  # what the router remembers of the server that ran there before is of no use
        routing.add(place)
        deadline = time.monotonic() + self.healthy_s
        while not routing.look(place).healthy:
            if time.monotonic() > deadline:
                raise StartFailed(f"the router does not find {name} healthy at {place.url}/health")
            time.sleep(self.poll_s)
        return ""

    def _remove(self, name: str) -> str:
        """Take a replica out, unless nobody else would serve."""
        routing = self.group.router.routing
        others = [routing.look(self._place(member)) for member in self._members() if member != name]
        if not any(member.inside and member.healthy for member in others):
            raise StartFailed(f"{name} stays in the router, because no other replica serves")
        routing.remove(self._place(name))
        self.told.note(f"{name}: gets no new requests")
        return ""

    def _drain(self, name: str) -> str:
        """Wait until a replica has no requests left; after the bound, say how many will be cut."""
        server = stacks.find(name).server
        routing, place = self.group.router.routing, self._place(name)
        deadline = time.monotonic() + self.group.drain_s
        idle_since: float | None = None
        last = -1.0
        while True:
            open_ = routing.look(place).requests or 0
            try:
                sample = read_metrics(server, timeout_s=LOOK_S, api_key=api_key_for(server))
                open_ = max(open_, round(sample.running + sample.waiting))
            except GemmaspecError as error:
                if stacks.look(stacks.find(name)).status != "running":
                    return f"it no longer runs: {error.message}"
                open_ = max(open_, 1)
            now = time.monotonic()
            idle_since = None if open_ else idle_since or now
            if idle_since is not None and now - idle_since >= self.settle_s:
                return ""
            if now >= deadline:
                text = f"{open_} requests still ran after {self.group.drain_s:.0f} s; they are cut"
                self.told.note(f"{name}: {text}")
                return text
            if open_ and open_ != last:
                self.told.note(f"{name}: waiting for {open_} request{'s' if open_ != 1 else ''} to end")
                last = open_
            time.sleep(self.poll_s)

    def _members(self) -> list[str]:
        return [name for name, _ in self.roll.replicas if stacks.read_stack(name)]

    def _place(self, name: str) -> RouterPlace:
        started = stacks.find(name)
        return groups.place_of(started.server, started.replica or 0)

    def _serves(self, name: str) -> bool:
        """Return whether a replica whose replacement failed runs again as it did."""
        with contextlib.suppress(GemmaspecError):
            started = stacks.find(name)
            return started.outcome == "ready" and stacks.look(started).status == "running"
        return False

    def _with_outlook(self, error: GemmaspecError, end: End) -> GemmaspecError:
        """Add to the first failure what serves now and what to do next."""
        lines = [error.message, f"stopped at: {end.failed}", *self._configurations(end)]
        hint = f"gemmaspec rollback {self.group.name}    # or correct the cause and run up again"
        return error.amended("\n".join(lines), hint=hint if end.changed and self.group.before else None)

    def _configurations(self, end: End) -> Iterator[str]:
        """Say which replica runs which configuration after a change that did not reach its end."""
        if end.changed:
            yield f"{', '.join(end.changed)}: runs the new configuration"
        if end.back:
            yield f"{', '.join(end.back)}: runs again as before"
        if end.untouched:
            yield f"{', '.join(end.untouched)}: unchanged"
        known = {*end.changed, *end.back, *end.untouched}
        if rest := [name for name, _ in self.roll.replicas if name not in known]:
            yield f"{', '.join(rest)}: does not run"


class _Named:
    """Progress of one replica, with its name."""

    def __init__(self, name: str, told: Told, already: set[str]) -> None:
        self._name, self._told, self._said = name, told, already

    def note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._told.note(f"{self._name}: {text}")

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        self._told.owner.tell(f"{self._name}: {phase}")
        self._told.progress.phase(phase, elapsed, left)
