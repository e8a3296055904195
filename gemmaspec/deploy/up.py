"""`up`: from a loaded profile to a server that has answered."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.deploy import knowngood, lock, stacks
from gemmaspec.deploy.lint import stop_on_errors
from gemmaspec.deploy.models import check_models, models_of, needs_no_hub, server_cache
from gemmaspec.deploy.prepare import prepare, runtime_spec
from gemmaspec.deploy.stacks import Started, stack_folder
from gemmaspec.deploy.starting import Progress, Running, make_room, start, wait
from gemmaspec.deploy.tiny import make_tiny, wants_tiny
from gemmaspec.engine.choose import choose_engine
from gemmaspec.engine.server import Engine, EngineName
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.find import is_path
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.runtime.managed import ensure_runtime
from gemmaspec.stack import folder as stack_files
from gemmaspec.stack.build import Stack


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `up` was asked for."""

    profile: str
    overrides: Sequence[str] = ()
    no_spec: bool = False
    engine: EngineName | None = None
    locked: bool = False
    """Whether only what the profile's lock pins may run."""
    timeout_s: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What `up` would do: for a person to read."""

    engine: EngineName
    why: str
    files: tuple[str, ...]
    command: str


def up(request: Request, progress: Progress) -> Running:
    """Start the stack of a profile and return once it has drafted, verified and answered.

    A stack that already runs as it would be rendered now is only asked; one that runs differently is
    stopped first. A start that fails or is interrupted is stopped again, and its log kept.
    Raises EnvironmentMissing, PatchConflict, StartFailed, TimedOut as errors.py says, DifferencesFound
    when it is not as locked.
    """
    loaded = load_request(request)
    stop_on_errors(loaded, progress.note)
    engine, why = choose_engine(request.engine, profile=loaded.profile)
    loaded = as_asked(loaded, request, engine.name)
    progress.note(f"engine {why}")
    server, stack = prepare(loaded, engine=engine.name, remote=engine.remote)
    cache = server_cache(loaded.profile, docker=engine.name == "docker")
    started = Started(
        engine=engine.name,
        server=server,
        profile=str(loaded.file) if is_path(request.profile) else request.profile,
        overrides=tuple(request.overrides),
        no_spec=request.no_spec,
        locked=request.locked,
        hub_cache=str(cache) if cache else None,
    )
    if _runs_as_rendered(engine, started, stack):
        progress.note(f"{server.name} is already running; asking it")
        return wait(engine, started, timeout_s=request.timeout_s, progress=progress, was_running=True)
    check_models(loaded.profile, note=progress.note)
    if engine.name == "process":
        _ensure_runtime(loaded, request, progress)
    make_room(engine, server, progress)
    if wants_tiny(loaded.profile):
        progress.note("making the tiny models")
        make_tiny(server)
    offline = cache is not None and _offline(loaded, cache, progress)
    running = start(engine, started, stack.files, offline=offline, timeout_s=request.timeout_s, progress=progress)
    knowngood.keep(loaded, running, engine, stack, note=progress.note)
    return running


def load_request(request: Request) -> Loaded:
    """The profile that is asked for, as it is written."""
    return load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)


def as_asked(loaded: Loaded, request: Request, engine: EngineName) -> Loaded:
    """The same, pinned by its lock if that is asked for too."""
    return lock.as_locked(loaded, engine) if request.locked else loaded


def dry_run(request: Request, note: Callable[[str], None]) -> DryRun:
    """What `up` would write and run; touches nothing but the engine's own answer."""
    loaded = load_request(request)
    stop_on_errors(loaded, note)
    engine, why = choose_engine(request.engine, profile=loaded.profile)
    loaded = as_asked(loaded, request, engine.name)
    server, stack = prepare(loaded, engine=engine.name, remote=engine.remote)
    files = tuple(str(server.folder / name) for name in sorted(stack.files))
    return DryRun(engine=engine.name, why=why, files=files, command=shlex.join(engine.start_command(server)))


def down(name: str) -> bool:
    """Stop a stack; True when it was running. Its files and caches stay."""
    started = stacks.find(name)
    return stacks.engine_of(started).stop(started.server)


def again(name: str, *, timeout_s: float) -> Request:
    """The request that started a stack."""
    started = stacks.find(name)
    return Request(
        profile=started.profile,
        overrides=started.overrides,
        no_spec=started.no_spec,
        engine=started.engine,
        locked=started.locked,
        timeout_s=timeout_s,
    )


def _offline(loaded: Loaded, cache: Path, progress: Progress) -> bool:
    """Whether the server shall leave the Hub alone; a profile that says so itself has decided."""
    if "HF_HUB_OFFLINE" in loaded.profile.env:
        return False
    return needs_no_hub(models_of(loaded.profile), cache=cache, note=progress.note)


def _ensure_runtime(loaded: Loaded, request: Request, progress: Progress) -> None:
    if not loaded.profile.runtime.python:
        ensure_runtime(runtime_spec(loaded), progress=progress.note)
    if request.locked:
        lock.check_runtime(loaded)


def _runs_as_rendered(engine: Engine, started: Started, stack: Stack) -> bool:
    """Whether this very stack runs already, files and command unchanged."""
    folder = stack_folder(started.server.name)
    with contextlib.suppress(GemmaspecError):
        before = stacks.find(started.server.name)
        same = before.engine == started.engine and before.server == started.server
        return same and engine.state(started.server).status == "running" and not stack_files.difference(stack, folder)
    return False
