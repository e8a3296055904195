"""`status`: what runs, the phase of its start, its patches, and how well it drafts."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.core.errors import GemmaspecError, TimedOut, UsageError
from gemmaspec.core.files import UnreadableFile, other_owner
from gemmaspec.core.fleet.reports import same_as
from gemmaspec.core.live.sample import Counters
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.server_state import ServerState, Word
from gemmaspec.measure.load import AT_ONCE, together
from gemmaspec.run.engine.choose import engine_of_nodes, seats
from gemmaspec.run.engine.lines import split_host
from gemmaspec.run.engine.server import Engine, Server, State
from gemmaspec.run.kept import stack_lock, stacks
from gemmaspec.run.kept.attention import Graphs, Logged, graphs_lost, of_running
from gemmaspec.run.kept.endings import next_after, why_ended
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.kept.verdicts import Last, hang_of, last_verdicts
from gemmaspec.run.ready.death import Death
from gemmaspec.run.ready.first_request import api_key_for, healthy, read_metrics
from gemmaspec.run.ready.phases import PhaseTracker
from gemmaspec.run.trees.verdicts import ChangedFile, compare
from gemmaspec.serve import speedless

if TYPE_CHECKING:
    from gemmaspec.run.engine.fleet import FleetEngine

_LOOK: Final = "health.json"
"""In the run folder: what the last `status` saw of the engine's counters."""
_COUNTERS_S: Final = 3.0
_LOG_LINES: Final = 5000
"""Number of log lines to read for the phase of a start that no command waits for."""


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One rank of a server on several machines."""

    rank: int
    host: str
    state: State
    plan: str | None
    """The sha256 of the plan in its launcher's report; None without a report."""
    same: bool | None
    """Whether its report equals that of rank 0; None if one of the two is missing."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The status of one stack."""

    started: Started
    state: State
    word: Word
    why: str = ""
    """Details of the state: the phase of a start, how it ended, why it is unknown."""
    cause: Death | None = None
    """Why it ended or its start failed, as its log says; None for any other state."""
    since: float | None = None
    """Unix time at which the start began, or at which the server ended."""
    next: str | None = None
    """The next command; None for a server that is ready."""
    report: dict[str, Any] | None = None
    counters: Counters | None = None
    """What the server has drafted since its start; None when it does not answer."""
    changed: tuple[ChangedFile, ...] = ()
    """Files that have changed since it started."""

    damaged: bool = False
    """Whether its record is damaged; `started` then has only its name and folder."""
    speedless: bool = False
    """Whether it was started without the patches for speed of its profile."""
    problem: str = ""
    """Why the launcher's report cannot be read."""
    last: Last | None = None
    """What `smoke` and `watch` found last."""
    nodes: tuple[NodeStatus, ...] = ()
    """The ranks of a server on several machines."""
    logged: Logged = field(default_factory=Logged)
    """What its log says of attention backends and CUDA graphs, once it is ready."""
    graphs: Graphs | None = None
    """CUDA graphs that it lacks."""

    @property
    def running(self) -> bool:
        """Whether the server's process or container exists."""
        return self.state.status == "running"


def status(name: str | None) -> list[Status]:
    """Return the status of one stack or of all; a stack with a damaged record is `unknown`.

    Raises UsageError if no stack of that name was started here.
    """
    if name:
        names = [name]
    else:
        names = sorted({*stacks.names_of_stacks(), *stacks.orphaned()})
    return each(names, whole=bool(name))


def each(names: Sequence[str], *, whole: bool) -> list[Status]:
    """Return the status of each of these stacks; with `whole`, also the failures that its log names."""
    return together([partial(_seen, name, whole=whole) for name in names], at_once=AT_ONCE)


def _seen(name: str, *, whole: bool) -> Status:
    """Return the status of one stack. Its engine is asked several things side by side, because a daemon may be slow."""
    holder = stack_lock.holder(name)
    started = _started(name, holder)
    if isinstance(started, Status):
        return dataclasses.replace(started, last=last_verdicts(started.started))
    engine = stacks.engine_of(started)
    state = stacks.look(started, engine)
    away = state.status in ("absent", "unknown")
    work: list[Callable[[], Any]] = [
        partial(_status, started, state, engine, holder),
        partial(last_verdicts, started, None if away else engine),
    ]
    if whole and state.status == "running":
        work.append(partial(of_running, started, engine))
    at_once = 1 if started.server.nodes else len(work)  # a server on several machines has its own threads
    status, last, *log = together(work, at_once=at_once)
    return _with_log(_with_verdicts(status, last), engine, log[0] if log else None)


def _with_log(status: Status, engine: Engine, log: Logged | None) -> Status:
    """Return the status with what the log says; without a log it is read only for the graphs of a GPU."""
    if not status.running:
        return status
    if status.word == ServerState.READY:
        lost = graphs_lost(status.started, log, engine=engine)
    else:
        lost = None
    status = dataclasses.replace(status, logged=log or status.logged, graphs=lost)
    if lost is None or not lost.hurts:
        return status
    why = f"it drafts without CUDA graphs ({lost.modes.words()})"
    return dataclasses.replace(status, word="degraded", why=why, next=lost.next)


def _with_verdicts(status: Status, last: Last) -> Status:
    if status.running and (hang := hang_of(status.started, last)):
        follow = f"gemmaspec restart {status.started.server.name}"
        status = dataclasses.replace(status, word="unknown", why=hang, next=follow)
    return dataclasses.replace(status, last=last, nodes=_nodes(status.started))


def _nodes(started: Started) -> tuple[NodeStatus, ...]:
    """Return the ranks of a server, each as its own daemon sees it; none for a server on one machine."""
    if not started.server.nodes:
        return ()
    with contextlib.closing(engine_of_nodes(started.server.nodes)) as engine:
        return _nodes_of(started, engine)


def _nodes_of(started: Started, engine: FleetEngine) -> tuple[NodeStatus, ...]:
    seen = engine.states(started.server)
    known: dict[str, State] = {}
    for host, state in seen.items():
        if not isinstance(state, State):  # the error with which its daemon answered
            state = State(status="unknown", detail=state.message, hint=state.hint)
        known[host] = state
    reports = {
        host: _report_of(rank, server) if known[host].status == "running" else None
        for host, rank, server in seats(engine, started.server)
    }
    nodes = []
    for rank, (host, state) in enumerate(known.items()):
        report = reports[host]
        plan = str(report.get("plan_sha256")) if report else None
        nodes.append(NodeStatus(rank=rank, host=host, state=state, plan=plan, same=same_as(reports, host)))
    return tuple(nodes)


def _report_of(engine: Engine, server: Server) -> dict[str, Any] | None:
    with contextlib.suppress(GemmaspecError):
        return engine.report(server)
    return None


def _started(name: str, holder: stack_lock.Holder | None) -> Started | Status:
    """Return the record of a stack; its status where nothing can be done with that."""
    try:
        return stacks.find(name)
    except UnreadableFile as error:
        return _damaged(name, error)
    except stacks.Orphaned as error:
        return _without_record(name, error.message, error.hint)
    except UsageError:
        if holder is None:
            raise
        return stacks.rescue(name)


def _status(started: Started, state: State, engine: Engine, holder: stack_lock.Holder | None) -> Status:
    name = started.server.name
    if holder and holder.command in stack_lock.STARTS:
        why = f"{holder.phase or 'beginning'}, by gemmaspec {holder.command} (pid {holder.pid})"
        watch = f"gemmaspec status {name} --wait"
        word = ServerState.STARTING
        return Status(started=started, state=state, word=word, why=why, since=holder.since, next=watch)
    match started.state(state):
        case None:
            return Status(started=started, state=state, word="unknown", why=state.detail, next=state.hint)
        case ServerState.STOPPING:
            return _ending(started, state, holder)
        case ServerState.STOPPED:
            return _stopped(started, state)
        case ServerState.EXITED:
            return _exited(started, state)
        case ServerState.STARTING | ServerState.READY as word:
            return _alive(started, state, engine, word)


def _ending(started: Started, state: State, holder: stack_lock.Holder | None) -> Status:
    """Return the status of a server that `down` has begun to stop, and of which something still runs."""
    name = started.server.name
    by_down = holder is not None and holder.command == "down"
    if by_down:
        why = f"by {holder}"
    else:
        why = "down was interrupted; what is left of it may still end by itself"
    follow = f"gemmaspec down {name}    # waits for its end"
    word = ServerState.STOPPING
    return Status(started=started, state=state, word=word, why=why, since=started.since, next=follow)


def _damaged(name: str, error: UnreadableFile) -> Status:
    """Return the status of a stack with a damaged record: unknown; `down` stops the server that its folder names."""
    seen = stacks.look(stacks.rescue(name))
    why = f"{error.message}; {seen.status}{f': {seen.detail}' if seen.detail else ''}"
    return _without_record(name, why, error.hint if other_owner(error.path) else f"gemmaspec down {name}")


def _without_record(name: str, why: str, follow: str | None) -> Status:
    """Return the status of a server of which nothing is known but its name."""
    state = State(status="unknown", detail=why, hint=follow)
    return Status(started=stacks.rescue(name), state=state, word="unknown", why=why, next=follow, damaged=True)


def _stopped(started: Started, state: State) -> Status:
    """Return the status of a server that `down`, or Ctrl-C during its start, has ended."""
    status = Status(started=started, state=state, word=ServerState.STOPPED, next=next_after(started, state))
    if started.outcome != "interrupted":
        return status
    return dataclasses.replace(status, why="its start was interrupted", since=started.since)


def _exited(started: Started, state: State) -> Status:
    """Return the status of a server that ended by itself, or whose start failed."""
    if state.status == "exited":
        return _died(started, state)
    logs = f"gemmaspec logs --previous {started.server.name}"
    status = Status(started=started, state=state, word=ServerState.EXITED, why="its start failed", next=logs)
    if started.outcome == "failed" and not started.server.nodes:
        return dataclasses.replace(status, cause=why_ended(started, state), since=started.since)
    if started.outcome == "failed":
        return dataclasses.replace(status, since=state.ended)
    if started.server.nodes:  # `watch` stops all ranks after one has ended
        return dataclasses.replace(status, why="a rank has ended, and all were stopped", since=state.ended)
    return _died(started, state)


def _died(started: Started, state: State) -> Status:
    """Return the status of a server that ended by itself, with the cause from its log, and how to start it again."""
    if state.exit_code is not None:
        code = f"exit code {state.exit_code}"
    else:
        code = ""
    return Status(
        started=started,
        state=state,
        word=ServerState.EXITED,
        why=", ".join(part for part in (code, state.detail) if part),
        cause=why_ended(started, state),
        since=state.ended,
        next=next_after(started, state),
    )


def _alive(started: Started, state: State, engine: Engine, recorded: ServerState) -> Status:
    """Return the status of a server that lives, and that was ready or was not, as its record says."""
    name = started.server.name
    answers = healthy(started.server)
    report, changed, problem = _report(engine, started)
    if answers:
        counters, slow = _counters(started)
    else:
        counters, slow = (None, "")
    was_ready = recorded is ServerState.READY
    word: Word = ServerState.STARTING
    why = ""
    follow: str | None = f"gemmaspec status {name} --wait"
    if not answers and was_ready and state.status == "running" and not state.restarts:
        word, why, follow = "unknown", "it runs, but /health does not answer", f"gemmaspec logs -f {name}"
    elif not answers:
        why = _phase(started, state, engine)
    elif not was_ready:
        why = "it answers, but has not been probed yet"
    elif _hangs(started, state):
        word, why, follow = "unknown", _no_token(started, state), f"gemmaspec restart {name}"
    else:
        word = ServerState.READY
        why, follow = _measured(started)
    if report and word == ServerState.STARTING:  # its processes attest themselves as they come
        report.pop("attested", None)
    return Status(
        started=started,
        state=state,
        word=word,
        why=why,
        since=started.since,
        next=follow,
        report=report,
        speedless=speedless.OFF in started.overrides,
        counters=counters,
        changed=changed,
        problem=problem or slow,
    )


def _measured(started: Started) -> tuple[str, str | None]:
    """Return who measures a server that is ready, and the command for one that was left behind."""
    if started.by is None:
        return "", None
    if started.by.alive:
        return f"measured by {started.by}", None
    follow = f"gemmaspec down {started.server.name}    # or continue that {started.by.command}"
    return f"left behind by {started.by}, which has ended", follow


def _hangs(started: Started, state: State) -> bool:
    """Return whether a server that is green on /health gives no token; a container's own health check knows."""
    if uses_image(started.engine):
        return state.unhealthy
    from gemmaspec.run.ready.moving import hangs  # slow to import, and only a server that answers is asked

    return hangs(started.server, started.server.run_dir / _LOOK)


def _no_token(started: Started, state: State) -> str:
    nodes = started.server.nodes
    if nodes and state.host != nodes[0].host:
        return f"it runs and /health answers, but the health check of {state.host} does not reach rank 0"
    if uses_image(started.engine):
        return "it runs and /health answers, but its health check gets no token"
    return "it runs and /health answers, but it gives no token"


def _phase(started: Started, state: State, engine: Engine) -> str:
    """Return the phase of a start that no command waits for, from its log."""
    if state.status == "restarting":
        return f"restarting, attempt {state.restarts}"
    tracker = PhaseTracker(time.monotonic, speculates=started.server.speculates)
    with contextlib.suppress(GemmaspecError):
        nodes = started.server.nodes
        for line in engine.logs(started.server, tail=_LOG_LINES):
            if nodes:
                host, text = split_host(line)
            else:
                host, text = ("", line)
            if not nodes or host == nodes[0].host:
                tracker.feed(text)
    return f"{tracker.phase}{f', restarted {state.restarts} times' if state.restarts else ''}"


def _report(engine: Engine, started: Started) -> tuple[dict[str, Any] | None, tuple[ChangedFile, ...], str]:
    """Return the launcher's report, the differences from it, and why it cannot be read."""
    try:
        report = engine.report(started.server)
        return report, _changes(engine, started, report) if report else (), ""
    except GemmaspecError as error:
        return None, (), error.message


def _changes(engine: Engine, started: Started, first: dict[str, Any]) -> tuple[ChangedFile, ...]:
    """Return the differences from each rank's report, with its host where there are several; `first`: rank 0's."""
    changes: list[ChangedFile] = []
    for place, (host, rank, server) in enumerate(seats(engine, started.server)):
        report = rank.report(server) if place else first
        for change in compare(server, rank, report) if report else ():
            changes.append(dataclasses.replace(change, detail=f"on {host}: {change.detail}") if host else change)
    return tuple(changes)


def _counters(started: Started) -> tuple[Counters | None, str]:
    """Return what the server has drafted, or that its counters come too slowly to say so."""
    try:
        sample = read_metrics(started.server, timeout_s=_COUNTERS_S, api_key=api_key_for(started.server))
        return Counters.of(sample), ""
    except TimedOut:
        return None, f"/metrics does not answer within {_COUNTERS_S:.0f} s, so how it drafts is not known"
    except GemmaspecError:
        return None, ""
