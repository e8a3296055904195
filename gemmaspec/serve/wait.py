"""`status --wait`: wait until a started profile has answered, whoever started it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed, TimedOut
from gemmaspec.core.server_state import ServerState
from gemmaspec.run.engine.server import State
from gemmaspec.run.kept import stack_lock, stacks
from gemmaspec.run.kept.endings import next_after, why_ended
from gemmaspec.run.kept.stack_lock import StartProgress
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.ready.first_request import healthy
from gemmaspec.run.ready.phases import Phase
from gemmaspec.run.ready.wait import wait_ready
from gemmaspec.serve import knowngood
from gemmaspec.serve.decide import decide
from gemmaspec.serve.observe import load_request, observe
from gemmaspec.serve.starting import Running
from gemmaspec.serve.up import again, what_runs

_POLL_S: Final = 0.5


def wait(name: str, progress: StartProgress, *, timeout_s: float) -> Running:
    """Wait until a started profile has drafted, verified and answered. Stops nothing, whatever happens.

    Raises UsageError if no stack of that name was started here, StartFailed if it does not run or its start fails,
    TimedOut, EnvironmentMissing if it is unknown whether it runs.
    """
    began = time.monotonic()
    until_nobody_starts_it(name, progress, timeout_s=timeout_s)
    started = stacks.find(name)
    engine = stacks.engine_of(started)
    state = stacks.look(started, engine)
    now = started.state(state)
    if now is None:
        raise EnvironmentMissing(f"cannot tell whether {name} runs: {state.detail}", hint=state.hint)
    if now in (ServerState.STOPPED, ServerState.EXITED):
        raise _not_running(started, state)
    if now is ServerState.STOPPING:
        raise StartFailed(f"{name} is being stopped", hint=f"gemmaspec down {name}    # waits for its end")
    left = max(1.0, timeout_s - (time.monotonic() - began))
    on_phase: Callable[[Phase, float], None] = progress.phase
    if healthy(started.server):  # the phases of its start are over
        progress.note(f"{name} is already running; sending a request")
        on_phase = _unsaid
    ready = wait_ready(engine, started.server, timeout_s=left, on_phase=on_phase)
    running = Running(started=started, ready=ready, report=engine.report(started.server), was_running=True)
    if started.outcome == "starting":
        return _remembered(running, progress)
    return running


def _unsaid(_: Phase, __: float) -> None:
    pass


def _not_running(started: Started, state: State) -> StartFailed:
    name = started.server.name
    if started.state(state) is ServerState.STOPPED:
        if started.outcome == "interrupted":
            how = "its start was interrupted"
        else:
            how = "it was stopped"
        return StartFailed(f"{name} is not running: {how}", hint=started.again)
    cause = why_ended(started, state).why
    if started.outcome == "failed":
        how = "its start failed"
        hint = f"gemmaspec logs --previous {name}"
    else:
        how = state.detail or state.status
        hint = next_after(started, state)
    return StartFailed(f"{name} is not running: {how}{f': {cause}' if cause else ''}", hint=hint)


def until_nobody_starts_it(name: str, progress: StartProgress, *, timeout_s: float) -> None:
    """Follow the command that starts it, if there is one, until it ends."""
    began, told = time.monotonic(), ""
    while (other := stack_lock.holder(name)) and other.command in stack_lock.STARTS:
        if other.phase != told:
            told = other.phase
            progress.note(f"gemmaspec {other.command} (pid {other.pid}): {told or 'beginning'}")
        if time.monotonic() - began > timeout_s:
            raise TimedOut(f"{name} is still locked by {other}", hint=f"gemmaspec status {name}")
        time.sleep(_POLL_S)


def _remembered(running: Running, progress: StartProgress) -> Running:
    """Record that a detached start became ready, and save it as known good."""
    started = dataclasses.replace(running.started, outcome="ready")
    stacks.save(started)
    running = dataclasses.replace(running, started=started)
    with contextlib.suppress(GemmaspecError):  # the profile has changed since, or is gone
        request = again(started.server.name, timeout_s=1.0)
        observed, engine = observe(request, load_request(request), lambda _: None)
        start = decide(request, observed)
        if start.joins and not start.server.nodes:
            runs, note = what_runs(observed.loaded, engine.name), progress.note
            knowngood.keep(observed.loaded, started, engine, observed.stack, runs, lock=observed.lock, note=note)
    return running
