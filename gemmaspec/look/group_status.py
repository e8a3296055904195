"""`status` of a profile with replicas: each of them, the router, and who gets requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.server_state import Recorded, ServerState, Word, state_of
from gemmaspec.look.status import Status, each
from gemmaspec.run.engine import router as router_engine
from gemmaspec.run.engine.server import State
from gemmaspec.run.kept import groups, stack_lock, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.verdicts import Watching, last_watch
from gemmaspec.serve.put_back import left_out


@dataclass(frozen=True, kw_only=True)
class RouterStatus:
    """The router of one profile."""

    group: Group
    state: State
    word: Word
    why: str = ""
    routed: dict[str, str]
    """What the router says of each replica: gets requests, unhealthy, taken out."""
    busy: str = ""
    """The command that works on the replicas now, with who and since when."""
    audit: tuple[str, ...] = ()
    """The last lines of the audit."""
    watch: Watching | None = None
    """What `watch` knew of it last."""

    @property
    def serving(self) -> int:
        """How many replicas get requests."""
        return sum(state == GETS for state in self.routed.values())


GETS = "gets requests"


def router_status(name: str) -> RouterStatus:
    """Return the status of the router of a profile. Raises UsageError if it has no replicas here."""
    group = groups.find(name)
    holder = stack_lock.holder(name)
    busy = str(holder) if holder else ""
    try:
        state = router_engine.state(group.router)
    except GemmaspecError as error:
        state = State(status="unknown", detail=error.message)
    word = _word(group, state)
    routed: dict[str, str] = {}
    why = state.detail if word in (ServerState.EXITED, "unknown") else ""
    if word == ServerState.READY:
        try:
            routed = _routed(group)
            if GETS in routed.values() and (why := router_engine.serving(group.router)):
                word = "unknown"
        except GemmaspecError as error:
            word, why = "unknown", error.message
    if word == ServerState.READY and not busy and (out := _forgotten(group)):
        if len(out) == 1:
            verb = "serves, and gets"
        else:
            verb = "serve, and get"
        word, why = "degraded", f"{', '.join(out)} {verb} no requests; next: {group.options.command}"
    if word == ServerState.EXITED and not why:
        why = f"next: {group.options.command}"
    lines = tuple(groups.last_audit(group))
    return RouterStatus(
        group=group, state=state, word=word, why=why, routed=routed, busy=busy, audit=lines, watch=last_watch(name)
    )


def _word(group: Group, state: State) -> Word:
    """Return the state of a router, which starts in an instant: it is ready as soon as it lives."""
    stopped = group.stopped and not state.lives
    recorded: Recorded = "stopped" if stopped else "ready"
    return state_of(recorded, state.status) or "unknown"


def _forgotten(group: Group) -> Sequence[str]:
    """Return the replicas that are left out and on which no command works."""
    try:
        return [name for name in left_out(group) if stack_lock.holder(name) is None]
    except GemmaspecError:
        return []


def replicas_status(name: str) -> list[Status]:
    """Return the status of each replica that was started."""
    return each(stacks.replicas_of(name), whole=True)


def routers_status() -> Sequence[RouterStatus]:
    """Return the status of every router that was started here; a record that cannot be read is left out."""
    statuses = []
    for name in groups.names():
        try:
            statuses.append(router_status(name))
        except GemmaspecError:
            continue
    return statuses


def _routed(group: Group) -> dict[str, str]:
    states = {}
    for name in group.members:
        started = stacks.read_stack(name)
        if started is None:
            continue
        server = group.router.routing.look(groups.place_of(started.server, started.replica or 0))
        if not server.inside:
            states[name] = "taken out"
        else:
            if server.healthy:
                states[name] = GETS
            else:
                states[name] = "unhealthy"
    return states
