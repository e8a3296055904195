"""The steps of a start, which `up`, `restart` and `rollback` carry out in the same way."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.data import shipped
from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.server_state import Recorded
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.kept import claims, stacks
from gemmaspec.run.kept.guarded import is_guarded
from gemmaspec.run.kept.logs import keep_log
from gemmaspec.run.kept.models import ModelRef, check_access, check_folder, hub_answers, place
from gemmaspec.run.kept.served_profile import profile_of
from gemmaspec.run.kept.stack_lock import Terminated, Told
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine.memory_guard import MemoryGuard
from gemmaspec.run.ready.first_request import healthy, probe
from gemmaspec.run.ready.phases import Phase
from gemmaspec.run.ready.wait import Checks, MemoryShort, Ready, wait_ready
from gemmaspec.run.runtime.managed import ensure_runtime
from gemmaspec.run.stack import folder as stack_files
from gemmaspec.serve import lock
from gemmaspec.serve.decide import FoundStack, Observed, Offline, Start
from gemmaspec.serve.down import has_ended
from gemmaspec.serve.knowngood import KnownGood
from gemmaspec.serve.start_costs import downloads_told, earlier_start, remember

_START_GRACE_S: Final = 5.0
"""A start has no requests to end; vLLM's own processes end within 2 s of being asked."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that has answered."""

    started: Started
    ready: Ready
    report: dict[str, Any] | None
    was_running: bool
    observed: Observed | None = None
    """What decided the start that has succeeded, which may be another one than was begun."""

    @cached_property
    def profile(self) -> Profile | None:
        """The profile that it serves; None where a rollback has started it, and its file is gone or has changed."""
        if self.observed:
            return self.observed.loaded.profile
        return profile_of(self.started)

    @property
    def is_toy(self) -> bool:
        """Whether it serves a tiny model that ships with gemmaspec."""
        return self.profile is not None and shipped(self.profile.target.model) is not None


def carry_out(
    start: Start,
    engine: Engine,
    told: Told,
    *,
    timeout_s: float,
    go_back: Callable[[KnownGood], Running],
    gate: Callable[[Callable[[str], None]], None] | None = None,
    instead: Callable[[Start, GemmaspecError], Start | None] | None = None,
) -> Running:
    """Carry out a start, and return once the server has answered.

    Nothing that runs is touched before everything that the start needs is in place. If the start fails after that,
    it is stopped, and `go_back` restarts the stack that ran before, if the start includes that. `gate` is called once
    the replaced server has ended. `instead` returns the start to try in place of one that has failed, if there is one.
    """
    if start.joins:
        _join(start.server, engine, told, "; sending a request")
        return wait(start, engine, told, timeout_s=timeout_s)
    with launched(start, engine, told, go_back=go_back, gate=gate):
        try:
            running = wait(start, engine, told, timeout_s=timeout_s)
        except StartFailed as error:
            other = instead(start, error) if instead else None
            if other is None:
                raise
            start = other
            running = _again(start, engine, told, timeout_s=timeout_s)
    return running


def _again(start: Start, engine: Engine, told: Told, *, timeout_s: float) -> Running:
    """Start the same server in another way, after the first has failed."""
    keep_log(engine, start.server)
    engine.stop(dataclasses.replace(start.server, stop_grace_s=_START_GRACE_S))
    write(start, told)
    launch(start, engine, told)
    return wait(start, engine, told, timeout_s=timeout_s)


def carry_out_detached(start: Start, engine: Engine, told: Told, *, go_back: Callable[[KnownGood], Running]) -> Started:
    """Carry out a start, and return once the server has been started, without waiting for its answer."""
    if start.joins:
        _join(start.server, engine, told)
        return start.started
    with launched(start, engine, told, go_back=go_back):
        return start.started


@contextlib.contextmanager
def launched(
    start: Start,
    engine: Engine,
    told: Told,
    *,
    go_back: Callable[[KnownGood], Running],
    gate: Callable[[Callable[[str], None]], None] | None = None,
) -> Iterator[None]:
    """Start the server, step by step; what is done with it is inside, and undone with it if that fails.

    `gate` is called once the replaced server has ended.
    """
    with ports_settled(start):
        check(start, told)
        fetch(start, engine, told)
        with nothing_lost(start, told, go_back=go_back):
            stop_replaced(start, told)
            if gate:
                gate(told.note)
        with undone_on_failure(start, engine, told, go_back=go_back):
            write(start, told)
            launch(start, engine, told)
            yield


def _join(server: Server, engine: Engine, told: Told, then: str = "") -> None:
    """Say that a server already runs, and start its watch again if that has ended."""
    told.note(f"{server.name} is already running{then}")
    if not server.watched:
        return
    from gemmaspec.run.engine.docker import DockerEngine  # its SDK is slow to import

    if isinstance(engine, DockerEngine) and engine.start_watch(server):
        told.note(f"the watch of {server.name} had ended; it was started again")


def check(start: Start, told: Told) -> None:
    """Raise EnvironmentMissing for anything missing that the start needs and nothing brings."""
    told.doing("checking")
    if not start.remote:
        claims.claim(start.server.port, start.server.name)
    for folder in start.folders:
        check_folder(folder)
    check_access(start.ask_access, note=told.note)


def fetch(start: Start, engine: Engine, told: Told) -> None:
    """Pull the image, build the runtime and copy the tiny models if they are missing; ask the engine whether it can."""
    told.doing("fetching")
    if start.runtime:
        ensure_runtime(start.runtime, progress=told.note)
    engine.preflight(start.server, port_is_free=start.port_is_free)
    if start.locked_runtime and start.observed:
        lock.check_runtime(start.observed.loaded, start.locked_runtime, start.server)
    for tiny in start.place:
        place(tiny)


def stop_replaced(start: Start, told: Told) -> None:
    """Stop the server of this name. Raise GemmaspecError if it cannot be stopped."""
    if start.replaces:
        before = start.replaces.started
        told.doing("stopping")
        if start.unchanged:
            what = "runs unchanged"
        else:
            what = "runs an earlier version"
        told.note(f"{before.server.name} {what} ({before.engine}, port {before.server.port}); stopping it")
        stacks.engine_of(before).stop(before.server)


def write(start: Start, told: Told) -> None:
    """Write the stack's files and its record."""
    told.doing("writing")
    stack_files.write_files(start.files, start.server.folder)
    stacks.save(start.started)


def launch(start: Start, engine: Engine, told: Told) -> None:
    """Start the server. Raises NotStarted if nothing of it runs."""
    told.doing("starting")
    with _exported("HF_HUB_OFFLINE", "1" if is_offline(start.offline, start.of_hub, told.note) else None):
        try:
            engine.start(start.server)
        except GemmaspecError as error:
            raise NotStarted(error) from None


def wait(start: Start, engine: Engine, told: Told, *, timeout_s: float) -> Running:
    """Wait until the server has answered, and record that it did."""
    shows_phases = not (start.joins and healthy(start.server))

    def phase(now: Phase, elapsed: float) -> None:
        if shows_phases:
            told.phase(now, elapsed, before.left(now) if before else None)

    before = earlier_start(start.server.name, start.engine)
    with downloads_told(start, told.note):
        try:
            ready = wait_ready(
                engine,
                start.server,
                timeout_s=timeout_s,
                on_phase=phase,
                restarts=None if start.joins else 0,
                checks=_checks(start),
            )
        except MemoryShort:  # every second counts, and nothing of it is to be ended in order
            engine.stop(dataclasses.replace(start.server, stop_grace_s=0))
            raise
    remember(start, seconds=ready.seconds, phases=ready.phases)
    started = _record(start.started, "ready")
    report = _report(engine, start.server, told)
    return Running(started=started, ready=ready, report=report, was_running=start.joins, observed=start.observed)


def _checks(start: Start) -> Checks:
    """Return what a start is waited for with: its probe, and the guard of the machine's memory."""
    asks = functools.partial(probe, any_text=True) if start.any_text else probe
    profile = start.observed.loaded.profile if start.observed else None
    guarded = not start.remote and is_guarded(start.started, profile)
    return Checks(probe=asks, guard=MemoryGuard().danger if guarded else None)


class NotStarted(Exception):
    """An engine refused to start a server, so that there is nothing to stop."""

    def __init__(self, error: GemmaspecError) -> None:
        super().__init__(error.message)
        self.error = error


@contextlib.contextmanager
def ports_settled(start: Start) -> Iterator[None]:
    """Keep the claim on the port of the server that runs in the end: the new one or the one before it."""
    name = start.server.name
    try:
        yield
    except BaseException:
        before = start.replaces
        lives = before and not _has_ended(before)
        claims.settle(name, before.started.server.port if before and lives else None)
        raise
    claims.settle(name, None if start.remote else start.server.port)


def _has_ended(before: FoundStack) -> bool:
    return stacks.look(before.started).gone


@contextlib.contextmanager
def nothing_lost(start: Start, told: Told, *, go_back: Callable[[KnownGood], Running]) -> Iterator[None]:
    """Start the earlier server again if the body fails after it has ended, or say that nothing runs.

    A stop may fail when the server has ended already: its processes are gone, but the machine still ends them.
    """
    try:
        yield
    except GemmaspecError as error:
        before = start.replaces
        if before is None or not _has_ended(before):
            raise
        raise _with_outlook(start, error, told, go_back=go_back) from None
    except KeyboardInterrupt as error:  # the end of the earlier server may have begun
        _after_interrupt(start, error, told, go_back=go_back)
        raise


@contextlib.contextmanager
def undone_on_failure(
    start: Start, engine: Engine, told: Told, *, go_back: Callable[[KnownGood], Running]
) -> Iterator[None]:
    """Stop this start if anything fails in the body, Ctrl-C included.

    Its log is kept, its record says that it failed, and the error says what runs now. After Ctrl-C, what ran before
    runs again.
    """
    try:
        yield
    except NotStarted as refused:
        _record_failure(start)
        raise _with_outlook(start, refused.error, told, go_back=go_back) from None
    except GemmaspecError as error:
        try:
            log, left = _end(start, engine, "failed")
        except KeyboardInterrupt as interrupt:
            told.note(error.message)
            _after_interrupt(start, interrupt, told, go_back=go_back)
            raise
        error = error.amended(
            f"{error.message}\n{left.message}" if left else error.message,
            hint=(left or error).hint or (f"less {log}    # the whole log" if log else None),
        )
        raise _with_outlook(start, error, told, go_back=go_back) from None
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted:
            told.doing("stopping")
            told.note(f"stopping {start.server.name} (up to {_grace(start):.0f} s; Ctrl-C again kills it)")
        _end(start, engine, "interrupted" if interrupted else "failed")
        _after_interrupt(start, error, told, go_back=go_back)
        raise


def _end(start: Start, engine: Engine, outcome: Recorded) -> tuple[Path | None, GemmaspecError | None]:
    """Stop a start that is undone; return where its log was kept, and why it may run on.

    An interrupt kills it, and is raised then: a second Ctrl-C has done all that it was pressed for.
    """
    log, grace_s, ended = keep_log(engine, start.server), _grace(start), False
    left: GemmaspecError | None = None
    interrupt: KeyboardInterrupt | None = None
    for _ in range(2):  # Docker may start a container again while it stops it
        try:
            engine.stop(dataclasses.replace(start.server, stop_grace_s=grace_s))
            ended = True
            break
        except KeyboardInterrupt as error:
            grace_s, interrupt = 0, error
        except GemmaspecError as error:
            left = error
    if ended or (not start.server.nodes and has_ended(engine, start.server)):
        left = None
        _record_failure(start, outcome)
    if interrupt and (outcome == "failed" or isinstance(interrupt, Terminated)):
        raise interrupt
    return log, left


def _after_interrupt(
    start: Start, error: BaseException, told: Told, *, go_back: Callable[[KnownGood], Running]
) -> None:
    """Start again what ran before a start that Ctrl-C has ended; `down` and service managers want nothing to run."""
    if isinstance(error, KeyboardInterrupt) and not isinstance(error, Terminated) and start.rollback:
        told.note(f"going back to {start.rollback.id}, which ran before; Ctrl-C again leaves it stopped")
        with contextlib.suppress(GemmaspecError):
            go_back(start.rollback)


def _grace(start: Start) -> float:
    return min(_START_GRACE_S, start.server.stop_grace_s)


def _record_failure(start: Start, outcome: Recorded = "failed") -> None:
    with contextlib.suppress(GemmaspecError):
        _record(start.started, outcome)


def _with_outlook(
    start: Start, error: GemmaspecError, told: Told, *, go_back: Callable[[KnownGood], Running]
) -> GemmaspecError:
    """Roll back to what ran before, if the start includes that, and add to the error what runs now."""
    if not start.replaces:
        return error
    name, reason = start.server.name, error.message
    before = start.replaces.started
    if before.server.nodes:
        command = f"{before.options.command}    # as it was"
    else:
        command = f"gemmaspec rollback {name}"
    if start.rollback:
        told.note(f"{reason.splitlines()[0]}; rolling back to {start.rollback.id}")
        try:
            server = go_back(start.rollback).started.server
        except GemmaspecError as again:
            reason += f"\nRolling back to {start.rollback.id} also failed: {again.message}"
        else:
            return error.amended(f"{reason}\n{name} runs again as before ({start.rollback.id}, port {server.port}).")
    return error.amended(
        f"{name} is not running: its earlier server was stopped for this start.\n{reason}\nTo start it again: {command}"
    )


def _report(engine: Engine, server: Server, told: Told) -> dict[str, Any] | None:
    """Return the launcher's report; a damaged one is only noted, because the server has answered."""
    try:
        return engine.report(server)
    except GemmaspecError as error:
        told.note(f"warning: {error.message}")
        return None


def _record(started: Started, outcome: Recorded) -> Started:
    """Record the outcome of a start, and return its record."""
    now = dataclasses.replace(started, outcome=outcome)
    if now != started:
        stacks.save(now)
    return now


def is_offline(offline: Offline, of_hub: Sequence[ModelRef], note: Callable[[str], None]) -> bool:
    """Return whether the server starts without the Hub; sends the Hub a request where its answer decides."""
    return offline == "yes" or (offline != "no" and not hub_answers(of_hub, note=note))


@contextlib.contextmanager
def _exported(name: str, value: str | None) -> Iterator[None]:
    """Export a variable during the body, so that both engines pass it on and no file of the stack contains it."""
    if value is None or name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
