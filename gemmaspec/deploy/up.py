"""`up`: from a loaded profile to a server that has answered."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gemmaspec.deploy import stacks
from gemmaspec.deploy.linting import stop_on_errors
from gemmaspec.deploy.models import MAKER, check_models, make_tiny, wants_tiny
from gemmaspec.deploy.prepare import prepare, runtime_spec
from gemmaspec.deploy.stacks import Started, stack_folder
from gemmaspec.engine.choose import choose_engine
from gemmaspec.engine.server import Engine, EngineName, Server
from gemmaspec.errors import GemmaspecError
from gemmaspec.files import state_dir, write_whole
from gemmaspec.profile.load import load_profile
from gemmaspec.ready.phases import Phase
from gemmaspec.ready.wait import Ready, wait_ready
from gemmaspec.runtime.managed import ensure_runtime
from gemmaspec.stack import folder as stack_files
from gemmaspec.stack.build import Stack


class Progress(Protocol):
    """Where `up` tells what it is doing."""

    def note(self, text: str) -> None:
        """One sentence, once."""

    def phase(self, phase: Phase, elapsed: float) -> None:
        """The start-up entered a phase, `elapsed` seconds after the start."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `up` was asked for."""

    profile: str
    overrides: Sequence[str] = ()
    no_spec: bool = False
    engine: EngineName | None = None
    timeout_s: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that has answered."""

    started: Started
    ready: Ready
    report: dict[str, Any] | None
    was_running: bool


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
    Raises EnvironmentMissing, PatchConflict, StartFailed, TimedOut as errors.py says.
    """
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    stop_on_errors(loaded, progress.note)
    engine, why = choose_engine(request.engine)
    progress.note(f"engine {why}")
    server, stack = prepare(loaded, engine=engine.name, remote=engine.remote)
    started = Started(
        engine=engine.name,
        server=server,
        profile=request.profile,
        overrides=tuple(request.overrides),
        no_spec=request.no_spec,
    )
    if _runs_as_rendered(engine, started, stack):
        progress.note(f"{server.name} is already running; asking it")
        return _wait(engine, started, request, progress, was_running=True)
    check_models(loaded.profile, note=progress.note)
    if engine.name == "process" and not loaded.profile.runtime.python:
        ensure_runtime(runtime_spec(loaded), progress=progress.note)
    _stop_before(server.name, progress, unless_on=engine.name)
    engine.preflight(server)
    if wants_tiny(loaded.profile):
        progress.note("making the tiny models")
        _make_tiny(server)
    _stop_before(server.name, progress)
    stack_files.write(stack, server.folder)
    stacks.save(started)
    with _stopped_on_failure(engine, server):
        engine.start(server)
        return _wait(engine, started, request, progress, was_running=False)


def dry_run(request: Request, note: Callable[[str], None]) -> DryRun:
    """What `up` would write and run; touches nothing but the engine's own answer."""
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    stop_on_errors(loaded, note)
    engine, why = choose_engine(request.engine)
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
        timeout_s=timeout_s,
    )


def _wait(engine: Engine, started: Started, request: Request, progress: Progress, *, was_running: bool) -> Running:
    ready = wait_ready(
        engine,
        started.server,
        timeout_s=request.timeout_s,
        on_phase=progress.phase,
        restarts=None if was_running else 0,
    )
    report = engine.report(started.server)
    return Running(started=started, ready=ready, report=report, was_running=was_running)


def _runs_as_rendered(engine: Engine, started: Started, stack: Stack) -> bool:
    """Whether this very stack runs already, files and command unchanged."""
    folder = stack_folder(started.server.name)
    with contextlib.suppress(GemmaspecError):
        before = stacks.find(started.server.name)
        same = before.engine == started.engine and before.server == started.server
        return same and engine.state(started.server).status == "running" and not stack_files.difference(stack, folder)
    return False


def _stop_before(name: str, progress: Progress, *, unless_on: EngineName | None = None) -> None:
    """Stop what runs under this name as it was rendered before.

    Late, so that a start that cannot work leaves it running; only on the other engine it goes first, since
    there it holds the port.
    """
    with contextlib.suppress(GemmaspecError):
        before = stacks.find(name)
        if before.engine == unless_on:
            return
        engine = stacks.engine_of(before)
        if engine.state(before.server).status in ("running", "restarting"):
            progress.note(f"{name} runs as it was rendered before; stopping that one")
            engine.stop(before.server)


def _make_tiny(server: Server) -> None:
    """With the interpreter or in the image that will serve them: both have what it takes."""
    tiny = state_dir() / "tiny"
    tiny.mkdir(parents=True, exist_ok=True)
    if server.python:
        make_tiny((str(server.python), str(MAKER), str(tiny)))
    else:
        make_tiny(_in_container(server.image or "", tiny))


def _in_container(image: str, tiny: os.PathLike[str]) -> tuple[str, ...]:
    mounts = (f"type=bind,source={MAKER},target=/make.py,readonly", f"type=bind,source={tiny},target=/tiny")
    options = ("--network", "none", "--entrypoint", "python3", "--user", f"{os.getuid()}:{os.getgid()}")
    mounted = (word for mount in mounts for word in ("--mount", mount))
    return ("docker", "run", "--rm", *options, *mounted, image, "/make.py", "/tiny")


@contextlib.contextmanager
def _stopped_on_failure(engine: Engine, server: Server) -> Iterator[None]:
    """Whatever goes wrong from here on, Ctrl-C included, nothing keeps running; the log is kept."""
    try:
        yield
    except BaseException as error:
        log = _keep_log(engine, server)
        with contextlib.suppress(GemmaspecError):
            engine.stop(server)
        if log and isinstance(error, GemmaspecError) and not error.hint:
            error.hint = f"less {log}    # the whole log"
        raise


def _keep_log(engine: Engine, server: Server) -> str | None:
    target = server.folder / "failed.log"
    try:
        write_whole(target, "\n".join(engine.logs(server, tail=20_000)) + "\n")
    except (GemmaspecError, OSError):
        return None
    return str(target)
