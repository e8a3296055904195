"""`up` and `restart`: from a profile, or the last known good stack, to a server that has answered."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.lock.document import Lock
from gemmaspec.core.profile.command import settings_digest
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.model import Tuned
from gemmaspec.run.engine.server import Engine, EngineName
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stack_lock import StartProgress, Told, owned
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine import nvidia
from gemmaspec.serve import knowngood, speedless
from gemmaspec.serve.decide import Observed, Start, UpRequest, decide
from gemmaspec.serve.observe import load_request, observe
from gemmaspec.serve.prepare import resolve
from gemmaspec.serve.rollback import way_back_of
from gemmaspec.serve.start_costs import say_ahead
from gemmaspec.serve.starting import Running, carry_out, carry_out_detached


def up(request: UpRequest, progress: StartProgress, loaded: Loaded | None = None) -> Running:
    """Start the stack of a profile, and return once it has drafted, verified and answered.

    `loaded` is the requested profile, where it was read before.

    A stack that already runs unchanged is only probed; one that differs is stopped once the new one can be started.
    A start that fails or is interrupted is stopped, and its log is kept.
    Raises EnvironmentMissing, PatchConflict, StartFailed, TimedOut as errors.py describes, DifferencesFound if it
    differs from its lock, GemmaspecError if another command has locked the stack.
    """
    loaded = load_request(request, loaded)
    name, command = loaded.profile.name, request.measured_by.command if request.measured_by else "up"
    with owned(name, command, wants=request.wants, note=progress.note, timeout_s=request.timeout_s) as owner:
        return _start(request, loaded, Told(progress=progress, owner=owner))


def up_detached(request: UpRequest, progress: StartProgress, loaded: Loaded | None = None) -> Started:
    """Start the stack of a profile, and return as soon as it has been started; `status --wait` follows it from there.

    Raises what `up` raises until then. A start that fails later is not stopped.
    """
    loaded = load_request(request, loaded)
    with owned(loaded.profile.name, "up", wants=request.wants, note=progress.note) as owner:
        told = Told(progress=progress, owner=owner)
        observed, engine = observe(request, loaded, told.note)
        start = decide(request, observed)
        say_ahead(start, told.note)
        started = carry_out_detached(start, engine, told, go_back=way_back_of(told, timeout_s=request.timeout_s))
        _settle(loaded, observed, started, engine, told.note, keeps=False)
        return started


def restart(
    name: str,
    progress: StartProgress,
    *,
    timeout_s: float,
    overrides: Sequence[str] = (),
    no_spec: bool = False,
    gate: Callable[[Callable[[str], None]], None] | None = None,
    first: Callable[[], None] | None = None,
) -> Running:
    """Render a started stack again and restart it with the options it was started with.

    `overrides` are added to those, and `no_spec` leaves the draft out. `gate` is called between the end of the old
    server and the new start, with a function that takes notes. `first` is called once the stack is locked, and may
    raise to leave it all undone. Raises what `up` raises. The running server is not stopped before everything that the
    new start needs is in place.
    """
    stacks.find(name)
    with owned(name, "restart", note=progress.note) as owner:
        if first:
            first()
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
    say_ahead(start, told.note)
    timeout_s = request.timeout_s
    way_back = way_back_of(told, timeout_s=timeout_s)
    if request.to_measure or request.locked:
        instead = None
    else:
        instead = partial(_without_speed, request, engine, told)
    running = carry_out(start, engine, told, timeout_s=timeout_s, go_back=way_back, gate=gate, instead=instead)
    if not request.to_measure:
        # one that it joins was not kept yet if its command was killed or did not wait
        was_ready = start.joins and start.started.outcome == "ready"
        keeps = not (was_ready or start.server.nodes)  # of several machines, only what it was on one is kept
        _settle(loaded, running.observed or observed, running.started, engine, told.note, keeps=keeps)
    return running


def _without_speed(request: UpRequest, engine: Engine, told: Told, start: Start, error: GemmaspecError) -> Start | None:
    """Return the same start without patches for speed, if those may be why it has failed."""
    suspicion = speedless.suspicion(start.files, speedless.log_of(engine, start.server), error)
    if suspicion is None:
        return None
    told.note(f"WARNING: {error.message.splitlines()[0]}: {suspicion}")
    told.note(f"WARNING: starting {start.server.name} again without {', '.join(suspicion.patches)}")
    request = dataclasses.replace(request, overrides=(*request.overrides, speedless.OFF))
    other = decide(request, observe(request, load_request(request), lambda _: None)[0])
    started = dataclasses.replace(other.started, last_ready=start.started.last_ready)
    return dataclasses.replace(other, joins=False, replaces=start.replaces, rollback=start.rollback, started=started)


def _settle(
    loaded: Loaded, seen: Observed, started: Started, engine: Engine, note: Callable[[str], None], *, keeps: bool
) -> None:
    """Save a start as known good, if it is one to keep, and say whether a tuned profile runs where it was tuned."""
    if not (keeps or loaded.profile.tuned):
        return
    runs = what_runs(seen.loaded, engine.name)
    if keeps:
        knowngood.keep(seen.loaded, started, engine, seen.stack, runs, lock=seen.lock, note=note)
    if remark := tuned_remark(loaded, runs):
        note(remark)


def what_runs(loaded: Loaded, engine: EngineName) -> Lock | Exception:
    """Return the facts of what a profile runs now, without the network, or why they are not known."""
    try:
        return resolve(loaded, engine)
    except (GemmaspecError, OSError, ValueError) as error:
        return error


_MOVES: Final = ("image.name", "target.asked", "draft.asked")
"""Facts of a lock that are names for what other facts say exactly."""
_WORDS: Final = {
    "engine": "the engine", "plan": "the patches", "image.id": "the image", "image.digest": "the image",
    "target.revision": "the target", "target.digest": "the target", "target.model": "the target",
    "draft.revision": "the draft", "draft.digest": "the draft", "draft.model": "the draft",
    "versions.vllm": "vLLM", "versions.torch": "torch", "versions.transformers": "transformers",
}  # fmt: skip


def tuned_remark(loaded: Loaded, runs: Lock | Exception) -> str | None:
    """Return in one sentence whether a tuned profile runs on what it was measured on; None for any other profile."""
    tuned = loaded.profile.tuned
    if tuned is None:
        return None
    when = f"tuned on {tuned.date[:10]}"
    if isinstance(runs, Exception):
        if isinstance(runs, OSError):
            problem = str(runs.strerror)
        else:
            problem = str(runs)
        return f"warning: {when}; cannot tell whether this is still what was measured: {problem}"
    differs = list(dict.fromkeys(_differences(tuned, loaded, runs.facts())))
    if not differs:
        return f"{when}: machine, image, vLLM and models are those that were measured"
    parent = loaded.profile.name.removesuffix("-tuned")
    return (
        f"warning: {when}, on something else: {'; '.join(differs)}. Its k may not be the best here; "
        f"gemmaspec tune {parent} measures again"
    )


def _differences(tuned: Tuned, loaded: Loaded, facts: Mapping[str, str]) -> Iterator[str]:
    gpus = nvidia.gpus()
    names = [gpu.name for gpu in gpus]
    if names != tuned.gpu:
        yield _moved("the GPU", ", ".join(tuned.gpu) or "none", ", ".join(names) or "none")
    elif gpus and gpus[0].driver != tuned.driver:
        yield _moved("the driver", tuned.driver or "unknown", gpus[0].driver or "unknown")
    for name in dict.fromkeys((*tuned.ran, *facts)):
        if name not in _MOVES and tuned.ran.get(name) != facts.get(name):
            yield _moved(_WORDS.get(name, name), *(_short(side.get(name)) for side in (tuned.ran, facts)))
    if tuned.settings != settings_digest(loaded.profile):
        yield "its settings are not those that were measured (--set, or the profile that it extends)"


def _moved(what: str, then: str, now: str) -> str:
    return f"{what} was {then}, and is {now}"


def _short(value: str | None) -> str:
    """Return a fact as a sentence holds it: of a digest the beginning."""
    text = value or "unknown"
    if text.startswith("sha256:"):
        return text[:19]
    if re.fullmatch(r"[0-9a-f]{40}", text):
        return text[:12]
    return text
