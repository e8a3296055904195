"""`up` and `restart`: from a profile to a server that has answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.attention import graphs_ahead
from gemmaspec.deploy.kept.owner import owned
from gemmaspec.deploy.kept.stacks import Started
from gemmaspec.deploy.start import speedless, tuned
from gemmaspec.deploy.start.ahead import ahead
from gemmaspec.deploy.start.decide import Start, UpRequest, decide
from gemmaspec.deploy.start.knowngood import KnownGood
from gemmaspec.deploy.start.observe import load_request, observe, without_speed
from gemmaspec.deploy.start.rollback import restore
from gemmaspec.deploy.start.starting import Running, StartProgress, Told, carry_out, carry_out_detached
from gemmaspec.engine.server import Engine
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.load import Loaded


def up(request: UpRequest, progress: StartProgress) -> Running:
    """Start the stack of a profile, and return once it has drafted, verified and answered.

    A stack that already runs unchanged is only probed; one that differs is stopped once the new one can be started.
    A start that fails or is interrupted is stopped, and its log is kept.
    Raises EnvironmentMissing, PatchConflict, StartFailed, TimedOut as errors.py describes, DifferencesFound if it
    differs from its lock, GemmaspecError if another command has locked the stack.
    """
    loaded = load_request(request)
    name, wants = loaded.profile.name, request.wants
    with owned(
        name, request.measured_by or "up", wants=wants, note=progress.note, timeout_s=request.timeout_s
    ) as owner:
        return _start(request, loaded, Told(progress=progress, owner=owner))


def up_detached(request: UpRequest, progress: StartProgress) -> Started:
    """Start the stack of a profile, and return as soon as it has been started; `wait` follows it from there.

    Raises what `up` raises until then. A start that fails later is not stopped.
    """
    loaded = load_request(request)
    with owned(loaded.profile.name, "up", wants=request.wants, note=progress.note) as owner:
        told = Told(progress=progress, owner=owner)
        observed, engine = observe(request, loaded, told.note)
        start = decide(request, observed)
        _say_ahead(start, told)
        started = carry_out_detached(start, engine, told, go_back=_way_back(told, timeout_s=request.timeout_s))
        _say_tuned(loaded, start, told)
        return started


def restart(
    name: str,
    progress: StartProgress,
    *,
    timeout_s: float,
    overrides: Sequence[str] = (),
    no_spec: bool = False,
    gate: Callable[[Callable[[str], None]], None] | None = None,
) -> Running:
    """Render a started stack again and restart it with the options it was started with.

    `overrides` are added to those, and `no_spec` leaves the draft out. `gate` is called between the end of the old
    server and the new start, with a function that takes notes. Raises what `up` raises. The running server is not
    stopped before everything that the new start needs is in place.
    """
    stacks.find(name)
    with owned(name, "restart", note=progress.note) as owner:
        request = dataclasses.replace(again(name, timeout_s=timeout_s), afresh=True)
        request = dataclasses.replace(
            request, overrides=(*request.overrides, *overrides), no_spec=request.no_spec or no_spec
        )
        return _start(request, load_request(request), Told(progress=progress, owner=owner), gate=gate)


def again(name: str, *, timeout_s: float) -> UpRequest:
    """Return the request of the last successful start."""
    return UpRequest.of(stacks.find(name).last_good_options, timeout_s=timeout_s)


def _start(
    request: UpRequest, loaded: Loaded, told: Told, *, gate: Callable[[Callable[[str], None]], None] | None = None
) -> Running:
    observed, engine = observe(request, loaded, told.note)
    start = decide(request, observed)
    _say_ahead(start, told)
    timeout_s = request.timeout_s
    way_back = _way_back(told, timeout_s=timeout_s)
    instead = None if request.to_measure or request.locked else partial(_without_speed, request, engine, told)
    running = carry_out(start, engine, told, timeout_s=timeout_s, go_back=way_back, gate=gate, instead=instead)
    if not request.to_measure:
        _say_tuned(loaded, start, told)
    return running


def _say_ahead(start: Start, told: Told) -> None:
    """Say what runs it, what is downloaded and built first, and about how long it takes."""
    told.note(f"engine {start.why}")
    if start.joins or start.to_measure:
        return
    before = ahead(start)
    for line in graphs_ahead(start.loaded.profile, elsewhere=bool(start.started.options.hosts)) if start.loaded else ():
        told.note(f"WARNING: {line}")
    for part in before.parts:
        told.note(f"{part.verb} {part}")
    told.note(f"time  {before.time()}")


def _without_speed(request: UpRequest, engine: Engine, told: Told, start: Start, error: GemmaspecError) -> Start | None:
    """Return the same start without patches for speed, if those may be why it has failed."""
    suspicion = speedless.suspicion(start.files, speedless.log_of(engine, start.server), error)
    if suspicion is None:
        return None
    told.note(f"WARNING: {error.message.splitlines()[0]}: {suspicion}")
    told.note(f"WARNING: starting {start.server.name} again without {', '.join(suspicion.patches)}")
    request = without_speed(request)
    other = decide(request, observe(request, load_request(request), lambda _: None)[0])
    started = dataclasses.replace(other.started, before=start.started.before)
    return dataclasses.replace(other, joins=False, replaces=start.replaces, rollback=start.rollback, started=started)


def _say_tuned(loaded: Loaded, start: Start, told: Told) -> None:
    if said := tuned.remark(loaded, start.engine):
        told.note(said)


def _way_back(told: Told, *, timeout_s: float) -> Callable[[KnownGood], Running]:
    """Return the request that restarts a replaced stack, without the timeout that the new server may have exceeded."""
    return lambda good: restore(good, told, timeout_s=max(timeout_s, UpRequest.timeout_s))
