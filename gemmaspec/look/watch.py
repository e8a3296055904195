"""`watch`: read a server's counters, name its faults, and do what its profile allows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from gemmaspec.check.predict.prompts import Prompts
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.live.faults import Event, FaultKind, Faults, limits_of
from gemmaspec.core.live.reaction import HOUR_S, Policy, Reaction, drains, reaction
from gemmaspec.core.live.reference import Reference
from gemmaspec.core.live.sample import Sample
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.rows import NONE, Row
from gemmaspec.look import hooks, suspects
from gemmaspec.look.sidecar.asking import ask
from gemmaspec.look.sidecar.known import KnownOfServer, Question
from gemmaspec.look.sidecar.rounds import WatchLine, fault_event, one_round, watch_line
from gemmaspec.run.engine.attested import OTHER_VERSION
from gemmaspec.run.engine.choose import seats
from gemmaspec.run.engine.memory_kills import memory_kills
from gemmaspec.run.engine.server import Engine, State
from gemmaspec.run.kept import measurements, stack_lock, stacks
from gemmaspec.run.kept.attention import graphs_lost
from gemmaspec.run.kept.endings import ending
from gemmaspec.run.kept.groups import each_of
from gemmaspec.run.kept.guarded import is_guarded
from gemmaspec.run.kept.logs import keep_log
from gemmaspec.run.kept.stacks import Started, stack_folder
from gemmaspec.run.kept.verdicts import Watching, keep_if_possible, keep_watch, last_watch
from gemmaspec.run.machine.memory_guard import MemoryGuard
from gemmaspec.run.ready.first_request import LOOK_S, api_key_for, read_metrics
from gemmaspec.serve.restart_judged import LeftAlone

LOG: Final = "watch.log"
MOST_LOG: Final = 1024 * 1024
"""Bytes after which the log is rotated; one old log is kept."""
_DRAIN_POLL_S: Final = 0.5
_AGAIN_S: Final = 10.0
"""Seconds before a restart that failed is tried again."""
_AGAIN_AT_MOST_S: Final = 600.0
NO_REFERENCE: Final = "slower than off (no step times: gemmaspec bench PROFILE --running --save-measured)"


class Restart(Protocol):
    """Restarts a stack, with or without speculation and patches for speed.

    `judged` is the start that was watched: another one is left alone, and so is one that somebody has stopped. Raises
    LeftAlone then, else GemmaspecError.
    """

    def __call__(self, judged: Started, *, no_spec: bool, no_speed: bool) -> None: ...


@dataclass(kw_only=True)
class Watched(KnownOfServer):
    """One stack under watch."""

    started: Started
    policy: Policy
    tellers: hooks.Tellers
    restarts: list[float] = field(default_factory=list)
    """When `watch` restarted it, in seconds since 1970."""
    attested: str = ""
    """What the processes attested last."""
    attested_of: int | None = None
    graphs_of: int = 0
    """The start whose CUDA graphs were looked at last, as the faults count them."""
    again: tuple[Event, float] | None = None
    """The event whose restart failed, and when it is tried again, in seconds since 1970."""
    failed: int = 0
    """Restarts that failed in a row."""
    kills: deque[int] = field(default_factory=lambda: deque(maxlen=2))
    """How many processes the kernel had killed for memory before the last two readings that the server answered: one
    that is being killed may answer once more."""
    starved: str = ""
    """That the kernel killed one in the moment in which the server went."""
    guard: MemoryGuard | None = None
    """What reads this machine's memory; None where its profile does not want that guarded."""
    engine: Engine | None = None
    """The engine of a server on several machines, which is asked at every look."""


def watched(names: Sequence[str], *, window_s: float | None = None, hang_s: float | None = None) -> list[Watched]:
    """Return the stacks of these names, or all that were started here, with what their profiles allow.

    The name of a profile with replicas means all of them.

    `window_s` and `hang_s`, in seconds, go before those of the profiles.
    Raises UsageError if a name was not started on this machine or its profile is no longer valid, and
    EnvironmentMissing where another user can write what would be run.
    """
    if names:
        started_all = [stacks.find(name) for name in each_of(names)]
    else:
        started_all = list(stacks.started_stacks())
    return [_watched(started, window_s, hang_s) for started in started_all]


def _watched(started: Started, window_s: float | None, hang_s: float | None) -> Watched:
    ensure_own(started.server.name)  # its record names the profile, and that the commands that are run
    loaded = load_profile(started.profile, overrides=started.overrides, no_spec=started.no_spec)
    wish = loaded.profile.watch
    limits = limits_of(window_s=window_s or wish.window_seconds, hang_s=hang_s or wish.hang_seconds)
    before = last_watch(started.server.name)
    policy = Policy(
        on_dead_draft=wish.on_dead_draft,
        on_slower=wish.on_slower,
        on_hang=wish.on_hang,
        on_exit=wish.on_exit,
        most_restarts_per_hour=wish.most_restarts_per_hour,
    )
    watched = Watched(
        started=started,
        policy=policy,
        tellers=hooks.Tellers(wish.hook, hooks.address(wish.webhook)),
        faults=Faults(limits=limits, reference=_reference(loaded), drafts_always=loaded.profile.drafts_always),
    )
    if before:
        watched.restarts, watched.last = list(before.restarts), before.last
    if is_guarded(started):
        watched.guard = MemoryGuard()
    return watched


def _reference(loaded: Loaded) -> Reference | None:
    """Return the step times that bench has kept for this profile; None without any for k = 0 and for its own method."""
    spec = loaded.profile.speculative
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    rows: Sequence[Row] = ()
    with contextlib.suppress(GemmaspecError):  # without them, one rule is not judged, and the verdict says so
        rows = measurements.own_rows(loaded)
        strange = rows and measurements.foreign(rows, loaded.profile)
        if rows and not strange:
            rows = measurements.of_plan(rows, measurements.taken_by(loaded.profile))
        else:
            rows = ()
    prompts = Prompts(rows, min((row.step for row in rows), default=1.0))  # a draft shortens none of their time
    for row in rows:
        if row.method == NONE or (spec and row.method == spec.method):
            times[row.k, row.concurrency].append(prompts.decoding(row)[0])
    drafts = {k for k, _ in times}
    if len(drafts) < 2 or 0 not in drafts:
        return None
    return Reference(seconds={at: statistics.median(each) for at, each in times.items()})


def look(stack: Watched, *, power_w: float | None, restart: Restart, interval: float = 1.0) -> Iterator[WatchLine]:
    """Read one stack once, act if its profile says so, and yield the events to log."""
    return one_round(
        stack,
        stack.started.server.name,
        problems=stack.tellers.problems(),
        look=_look(stack, power_w=power_w, restart=restart),
        keep=partial(keep_if_possible, stack.started.server.name, partial(_verdict, stack, interval)),
    )


def _verdict(stack: Watched, interval: float) -> Watching:
    blind = stack.started.server.speculates and stack.faults.reference is None
    # either way: an earlier watch may have written them under a clock that ran ahead
    lately = tuple(at for at in stack.restarts if abs(stack.clock() - at) < HOUR_S)
    active = {str(kind): since for kind, since in stack.since.items()}
    return Watching(
        at=stacks.now(),
        active=active,
        restarts=lately,
        last=stack.last,
        unknown=(NO_REFERENCE,) if blind else (),
        interval=interval,
        starved=stack.starved,
        attested=stack.attested,
    )


def _look(stack: Watched, *, power_w: float | None, restart: Restart) -> Iterator[WatchLine]:
    if stack.again and stack.clock() >= stack.again[1]:
        yield from _try_again(stack, stack.again[0], restart)
        return
    if stack.guard and (why := stack.guard.danger()):
        yield from _end_for_memory(stack, why, restart)
        return
    if stack.started.server.nodes and (lost := _lost_rank(stack)):
        yield from _end_ranks(stack, lost, restart)
        return
    kills = memory_kills()
    try:
        sample = _read(stack)
    except GemmaspecError as error:
        if stack.missed():
            yield _silent(stack, error.message)
        if stack.unreachable:
            yield from _look_at_process(stack, restart)
        return
    stack.starved = ""
    if kills is not None:
        stack.kills.append(kills)
    if stack.unreachable:
        yield _line(stack, "answers")
    if stack.started.server.reached_at is not None:  # on another machine, and so are its GPUs
        power_w = None
    yield from _told(stack, stack.taken(sample, power_w=power_w), restart)
    yield from _told(stack, _attested(stack), restart)
    yield from _told(stack, _graphs(stack), restart)
    server = stack.started.server
    stack.ask_if_silent(partial(ask, server.base_url, server.model, key=api_key_for(server)), power_w=power_w)


def _attested(stack: Watched) -> Sequence[Event]:
    """Return whether the processes of a start that was not looked at yet run the patched functions."""
    if stack.attested_of == stack.faults.starts:
        return ()
    texts, wrong = [], []
    try:
        for host, engine, server in seats(stacks.engine_of(stack.started), stack.started.server):
            report = engine.report(server)
            if not report or "attested" not in report:
                continue
            row = report["attested"]
            if host:
                text = f"{host}: {row['text']}"
            else:
                text = row["text"]
            texts.append(text)
            if row["state"] != "attested" and row.get("problems") != [OTHER_VERSION]:
                wrong.append(text)
    except GemmaspecError:  # whether it runs is judged elsewhere
        return ()
    stack.attested_of = stack.faults.starts
    stack.attested = "; ".join(texts)
    return stack.faults.judged(
        FaultKind.REPLACED, "; ".join(wrong), over="every process runs the patched functions again"
    )


def _graphs(stack: Watched) -> Sequence[Event]:
    """Return whether a start that was not looked at yet drafts without CUDA graphs; the engine's log is read once."""
    if stack.graphs_of == stack.faults.starts:
        return ()
    stack.graphs_of = stack.faults.starts
    if stack.started.server.speculates:
        lost = graphs_lost(stack.started)
    else:
        lost = None
    if lost and lost.hurts:
        sentence = f"{lost}; next: {lost.next}"
    else:
        sentence = ""
    return stack.faults.judged(FaultKind.GRAPHS, sentence, over="it has CUDA graphs")


def _read(stack: Watched) -> Sample:
    server = stack.started.server
    return read_metrics(server, timeout_s=LOOK_S, api_key=api_key_for(server))


def _silent(stack: Watched, why: str) -> WatchLine:
    """Return the line about a server that does not answer any more: what somebody stopped is not called unreachable."""
    name = stack.started.server.name
    with contextlib.suppress(GemmaspecError):
        if stacks.find(name).is_unwanted:
            return _line(stack, "stopped", reason="somebody stopped it; watch goes on once it is started again")
    return _line(stack, "unreachable", reason=why)


def _end_for_memory(stack: Watched, why: str, restart: Restart) -> Iterator[WatchLine]:
    """Kill a server before its machine runs out of memory; then do as for any that exited."""
    name = stack.started.server.name
    if stack_lock.holder(name):  # a command that starts it guards it too
        return
    reason = f"watch ended it before this machine freezes: {why}"
    try:
        now = stacks.find(name)
        engine = stacks.engine_of(now)
        if now.outcome != "ready" or stacks.look(now, engine).status != "running":
            return
        engine.stop(dataclasses.replace(now.server, stop_grace_s=0))
    except GemmaspecError as error:
        reason = f"{reason}; {error.message}"
    stack.starved = reason
    yield from _told(stack, stack.faults.gone(reason), restart)


def _look_at_process(stack: Watched, restart: Restart) -> Iterator[WatchLine]:
    """Look whether a server that does not answer has exited by itself; one that `down` ended has not."""
    name = stack.started.server.name
    if stack_lock.holder(name):  # a command that starts or stops it: how that ends is seen once it has ended
        return
    try:
        now = stacks.find(name)
    except GemmaspecError:
        return
    state = stacks.look(now)
    if now.outcome == "ready" and state.status == "exited":
        stack.starved = stack.starved or _starved(stack)
        state = dataclasses.replace(state, starved=state.starved or stack.starved)
        if state.exit_code is None:
            code = ""
        else:
            code = f" with exit code {state.exit_code}"
        why = ending(now, state, follow=stack.policy.on_exit == "report")
        yield from _told(stack, stack.faults.gone(f"the server has exited{code}{': ' if why else ''}{why}"), restart)


def _starved(stack: Watched) -> str:
    """Return that the kernel has killed for memory since the server answered last, a few seconds ago.

    Docker says so itself of a container, and nothing here counts what another machine kills.
    """
    if uses_image(stack.started.engine) or not stack.kills:
        return ""
    killed = (memory_kills() or 0) - stack.kills[0]
    word = "a process" if killed == 1 else f"{killed} processes"
    if killed > 0:
        return f"memory ran out: the kernel has killed {word} of this machine in that moment"
    return ""


def _lost_rank(stack: Watched) -> State | None:
    """Return how a rank of a server on several machines has ended; None while all run, or none was to run.

    A headless rank does not end with rank 0, and rank 0 answers /health without the others until it is used.
    """
    with contextlib.suppress(GemmaspecError):
        now = stacks.find(stack.started.server.name)
        stack.engine = stack.engine or stacks.engine_of(stack.started)
        if now.outcome == "ready":
            state = stacks.look(now, stack.engine)
        else:
            state = None
        if state and state.status == "exited":
            return state
        return None
    return None


def _end_ranks(stack: Watched, lost: State, restart: Restart) -> Iterator[WatchLine]:
    """Stop what is left of a server that has lost a rank, which cannot join again; then do as for any that exited."""
    reason = f"{lost.detail}; the other ranks were stopped, because a rank cannot join again"
    engine = stack.engine or stacks.engine_of(stack.started)
    if FaultKind.GONE not in stack.faults.active:  # what is stopped has no log any more
        keep_log(engine, stack.started.server)
    try:
        engine.stop(stack.started.server)
    except GemmaspecError as error:
        reason = f"{lost.detail}; {error.message}"
    yield from _told(stack, stack.faults.gone(reason), restart)


def _told(stack: Watched, events: Sequence[Event], restart: Restart) -> Iterator[WatchLine]:
    for event in events:
        stack.mark(event.kind, begins=event.begins)
        done = reaction(event, stack.policy, restarts=stack.restarts, now=stack.clock())
        if event.begins:
            speed = suspects.of(stack.started, event, stack.engine)
        else:
            speed = ()
        parts = [event.reason, done.note, suspects.sentence(stack.started.server.name, speed)]
        reason = "; ".join(part for part in parts if part)
        if done.note:
            stack.last = f"{event.kind}: {done.note}"
        yield _line(stack, "begins" if event.begins else "ends", fault=event.kind, reason=reason)
        _hand_on(stack, event, reason)
        yield from _act(stack, event, done, restart, speed)


def _act(
    stack: Watched, event: Event, done: Reaction, restart: Restart, speed: Sequence[str] = ()
) -> Iterator[WatchLine]:
    """Do what was decided. A server with suspected patches for speed is first restarted without those."""
    if done.action == "report":
        return
    speedless_first = bool(speed) and not stack.started.locked
    name = stack.started.server.name
    try:  # what cannot be written down may have been stopped by `down --force`, which then leaves no trace
        keep_watch(name, _verdict(stack, 0))
    except GemmaspecError as error:
        stack.last = f"{event.kind}: not restarted: {error.message}"
        _hand_on(stack, event, f"not restarted: {error.message}")
        yield _line(stack, "failed", fault=event.kind, reason=f"not restarted: {error.message}")
        return
    with contextlib.suppress(GemmaspecError):  # somebody may have started it anew since the watch began
        stack.started = stacks.find(name)
    if drains(event.kind):
        yield _line(stack, "drained", fault=event.kind, reason=_drain(stack))
    stack.restarts.append(stack.clock())
    off = done.action == "off" and not speedless_first
    if off:
        what = "restarted without speculation"
    else:
        what = "restarted"
    what += f" and without {', '.join(speed)}" if speedless_first else ""
    try:
        restart(stack.started, no_spec=off, no_speed=speedless_first)
    except LeftAlone as left:
        stack.restarts.pop()
        stack.again, stack.failed = None, 0
        stack.last = f"{event.kind}: not restarted: {left.message}"
        yield _line(stack, "left", fault=event.kind, reason=left.message)
        return
    except GemmaspecError as error:
        yield _failed(stack, event, error.message)
        return
    stack.again, stack.failed = None, 0
    stack.last = f"{event.kind}: {what}"
    stack.started, stack.since, stack.failures, stack.engine = stacks.find(name), {}, 0, None
    stack.graphs_of, stack.attested_of = 0, None
    drafts_always = stack.faults.drafts_always and not off
    stack.faults = Faults(limits=stack.faults.limits, reference=stack.faults.reference, drafts_always=drafts_always)
    stack.question = Question()
    yield _line(stack, "off" if off else "restarted", reason=what if speedless_first else "")


def _hand_on(stack: Watched, event: Event, reason: str) -> None:
    stack.tellers.tell(fault_event(stack.started.server.name, event.kind, begins=event.begins, reason=reason))


def retry_after(failed: int) -> float:
    """Return in how many seconds something is tried again that has failed so often; each wait is twice the last."""
    return min(_AGAIN_S * 2.0 ** (failed - 1), _AGAIN_AT_MOST_S)


def _failed(stack: Watched, event: Event, why: str) -> WatchLine:
    """Note that a restart failed, tell of it, and set when it is tried again; each wait is twice the one before."""
    stack.failed += 1
    wait = retry_after(stack.failed)
    stack.again = (event, stack.clock() + wait)
    stack.last = f"{event.kind}: a restart failed; tried again in {wait:.0f} s"
    _hand_on(stack, event, f"a restart failed: {why}; tried again in {wait:.0f} s")
    return _line(stack, "failed", reason=f"{why}; tried again in {wait:.0f} s")


def _try_again(stack: Watched, event: Event, restart: Restart) -> Iterator[WatchLine]:
    """Try a restart again that failed, unless the server was stopped or started since, or the limit is reached."""
    stack.again = None
    with contextlib.suppress(GemmaspecError):
        now = stacks.find(stack.started.server.name)
        if now.is_unwanted or stacks.look(now).status == "running":
            stack.failed = 0
            return
    done = reaction(event, stack.policy, restarts=stack.restarts, now=stack.clock())
    if done.note:
        stack.last = f"{event.kind}: {done.note}"
        _hand_on(stack, event, done.note)
        yield _line(stack, "failed", fault=event.kind, reason=done.note)
    yield from _act(stack, event, done, restart)


def _drain(stack: Watched, *, poll_s: float = _DRAIN_POLL_S) -> str:
    """Wait until no request runs, for as long as the server may take to stop, and say how that went."""
    began = time.monotonic()
    longest = stack.started.server.stop_grace_s
    most = 0.0
    while True:
        try:
            sample = _read(stack)
        except GemmaspecError:
            return "the server does not say any more how many requests run"
        left = sample.running + sample.waiting
        most = max(most, left)
        took = time.monotonic() - began
        if not left:
            return f"{most:.0f} requests ended within {took:.0f} s"
        if took >= longest:
            return f"{left:.0f} requests still ran after {longest:.0f} s, and are aborted"
        time.sleep(poll_s)


def _line(stack: Watched, what: str, *, fault: str | None = None, reason: str = "") -> WatchLine:
    return watch_line(stack.started.server.name, what, fault=fault, reason=reason)


def log(line: WatchLine, *, redact: Callable[[str], str], most: int = MOST_LOG) -> None:
    """Append a line to the stack's log, readable by this user only. A log that cannot be written stops nothing."""
    file = stack_folder(line.stack) / LOG
    with contextlib.suppress(OSError):
        if file.exists() and file.stat().st_size > most:
            file.replace(file.with_suffix(".log.1"))
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as handle:
            handle.write(redact(json.dumps(dataclasses.asdict(line))) + "\n")
