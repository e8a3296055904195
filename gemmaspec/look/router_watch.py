"""`watch` of a router: it is there, it answers, and every replica that serves gets requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.live.reaction import HOUR_S
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.model import Watch
from gemmaspec.look import hooks
from gemmaspec.look.sidecar.rounds import Known, WatchLine, fault_event, one_round, watch_line
from gemmaspec.look.watch import retry_after
from gemmaspec.run.engine import router as routers
from gemmaspec.run.kept import groups, stack_lock, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.kept.verdicts import Watching, keep_if_possible, last_watch
from gemmaspec.run.ready.phases import Phase
from gemmaspec.serve.put_back import left_out, put_back, serving
from gemmaspec.serve.wait import wait

RouterFault = Literal["router gone", "router silent", "left out"]
"""gone: its process has ended. silent: it runs, and takes no command. left out: a replica serves, without requests."""

_PROBE_S: Final = 120.0


@dataclass(kw_only=True)
class WatchedRouter(Known):
    """One router under watch."""

    name: str
    """The profile's name."""
    wish: Watch
    tellers: hooks.Tellers
    restarts: list[float] = field(default_factory=list)
    """When `watch` started it, in seconds since 1970."""
    again_at: float = 0.0
    """When something that failed is tried again, in seconds since 1970."""
    failed: int = 0
    """Attempts that failed in a row."""


def watched_routers(names: Sequence[str]) -> list[WatchedRouter]:
    """Return the routers of these profiles, or all that were started here, with what their profiles allow.

    Raises ProfileError if the profile of one is no longer valid, and EnvironmentMissing where another user can write
    what would be run.
    """
    wanted = [name for name in names if groups.is_group(name)] if names else groups.names()
    return [_watched(groups.find(name)) for name in wanted]


def _watched(group: Group) -> WatchedRouter:
    ensure_own(group.name)
    options = group.options
    wish = load_profile(options.profile, overrides=options.overrides, no_spec=options.no_spec).profile.watch
    before = last_watch(group.name)
    return WatchedRouter(
        name=group.name,
        wish=wish,
        tellers=hooks.Tellers(wish.hook, hooks.address(wish.webhook)),
        restarts=list(before.restarts) if before else [],
        last=before.last if before else "",
    )


def look_at_router(router: WatchedRouter, *, interval: float = 1.0) -> Iterator[WatchLine]:
    """Look at a router once, do what its profile allows, and yield the events to log."""
    problems = router.tellers.problems()
    keep = partial(keep_if_possible, router.name, partial(_verdict, router, interval))
    return one_round(router, router.name, problems=problems, look=_look(router), keep=keep)


def _verdict(router: WatchedRouter, interval: float) -> Watching:
    lately = tuple(at for at in router.restarts if abs(router.clock() - at) < HOUR_S)
    return Watching(
        at=stacks.now(),
        active=dict(router.since),
        restarts=lately,
        last=router.last,
        interval=interval,
    )


def _look(router: WatchedRouter) -> Iterator[WatchLine]:
    try:
        group = groups.read(router.name)
    except GemmaspecError:
        return
    if group is None or group.stopped or stack_lock.holder(router.name):
        return  # somebody works on it, or wants it down
    fault, reason = judged(group)
    yield from _told(router, fault, reason)
    if fault and router.clock() >= router.again_at:
        yield from _act(router, fault)


def judged(group: Group) -> tuple[RouterFault | None, str]:
    """Return what is wrong with a router that nobody works on, and why; None if it is well, or that is not known."""
    try:
        state = routers.state(group.router)
    except GemmaspecError:
        return None, ""
    if state.status == "exited" or (state.status == "absent" and serving(group)):
        return "router gone", f"the router has exited{f'; {state.detail}' if state.detail else ''}: no client is served"
    try:
        out = [name for name in left_out(group) if stack_lock.holder(name) is None]
    except GemmaspecError as error:
        return "router silent", error.message
    if not out:
        return None, ""
    return "left out", f"{', '.join(out)} would serve, and the router sends no requests there"


def _told(router: WatchedRouter, fault: RouterFault | None, reason: str) -> Iterator[WatchLine]:
    """Say which fault has begun or ended; a router has one at a time."""
    for over in [kind for kind in router.since if kind != fault]:
        router.mark(over, begins=False)
        router.again_at, router.failed = 0.0, 0
        yield _said(router, "ends", over, "it is well again" if fault is None else reason)
    if fault and fault not in router.since:
        router.mark(fault, begins=True)
        yield _said(router, "begins", fault, reason)


def _said(router: WatchedRouter, what: str, fault: str, reason: str) -> WatchLine:
    router.tellers.tell(fault_event(router.name, fault, begins=what == "begins", reason=reason))
    return watch_line(router.name, what, fault=fault, reason=reason)


def _act(router: WatchedRouter, fault: RouterFault) -> Iterator[WatchLine]:
    """Do what the profile allows about a fault. Putting a replica back needs no leave: nothing is restarted."""
    if fault == "left out":
        yield from _tried(router, fault)
        return
    if fault == "router gone":
        wished = router.wish.on_exit
    else:
        wished = router.wish.on_hang
    if wished != "restart":
        return
    lately = sum(abs(router.clock() - at) < HOUR_S for at in router.restarts)
    if lately >= router.wish.most_restarts_per_hour:
        note = f"not restarted: the limit of {lately} restarts per hour is reached"
        router.again_at = router.clock() + HOUR_S
        router.last = f"{fault}: {note}"
        yield _said(router, "failed", fault, note)
        return
    yield from _tried(router, fault)


def _tried(router: WatchedRouter, fault: RouterFault) -> Iterator[WatchLine]:
    """Repair a fault under the lock of the group, and say how that went; a failure is tried again, each time later."""
    try:
        with owned(router.name, "watch"):
            group = groups.find(router.name)
            if group.stopped or judged(group)[0] != fault:  # while this waited for the lock
                return
            done = _repaired(router, group, fault)
            for step in done:
                groups.write_audit(router.name, "watch", step, "done")
    except GemmaspecError as error:
        router.failed += 1
        wait_s = retry_after(router.failed)
        router.again_at = router.clock() + wait_s
        router.last = f"{fault}: not repaired; tried again in {wait_s:.0f} s"
        yield _said(router, "failed", fault, f"{error.message}; tried again in {wait_s:.0f} s")
        return
    if done:
        router.last = f"{fault}: {', '.join(done)}"
        yield watch_line(router.name, "repaired", fault=fault, reason=", ".join(done))


def _repaired(router: WatchedRouter, group: Group, fault: RouterFault) -> list[str]:
    """Start the router again if it is to be, and have it send requests to all that serve; return what was done."""
    done = []
    if fault == "left out":
        _probe_forgotten(group)
    else:
        router.restarts.append(router.clock())
        routers.stop(group.router)
        routers.start(group.router)
        done.append("router started")
    return [*done, *(f"{name} put back" for name in put_back(group))]


def _probe_forgotten(group: Group) -> None:
    """Send a request to each replica whose start nobody has seen to its end. Raises GemmaspecError if it fails one."""
    for name in left_out(group):
        if stacks.find(name).outcome == "starting" and stack_lock.holder(name) is None:
            wait(name, _Quiet(), timeout_s=_PROBE_S)


class _Quiet:
    """Progress that nobody reads."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        """Say nothing."""
