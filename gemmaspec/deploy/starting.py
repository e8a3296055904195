"""Starting a stack in the place of the one that runs under its name: up and rollback do it in the same way."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gemmaspec.deploy import stacks
from gemmaspec.deploy.stacks import Started
from gemmaspec.engine.server import Engine, EngineName, Server
from gemmaspec.errors import GemmaspecError
from gemmaspec.files import write_whole
from gemmaspec.ready.phases import Phase
from gemmaspec.ready.probe import probe
from gemmaspec.ready.wait import Checks, Ready, wait_ready
from gemmaspec.stack import folder as stack_files


class Progress(Protocol):
    """Where a start tells what it is doing."""

    def note(self, text: str) -> None:
        """One sentence, once."""

    def phase(self, phase: Phase, elapsed: float) -> None:
        """The start-up entered a phase, `elapsed` seconds after the start."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that has answered."""

    started: Started
    ready: Ready
    report: dict[str, Any] | None
    was_running: bool


def make_room(engine: Engine, server: Server, progress: Progress) -> None:
    """Raise EnvironmentMissing when the server could not start here.

    What runs under its name keeps running, except on the other engine, where it holds the port.
    """
    _stop_before(server.name, progress, unless_on=engine.name)
    engine.preflight(server)


def start(
    engine: Engine,
    started: Started,
    files: Mapping[str, str],
    *,
    offline: bool,
    timeout_s: float,
    progress: Progress,
    any_text: bool = False,
) -> Running:
    """Replace what runs under this name by these files, and wait until it has answered.

    `offline` tells the server to leave the Hugging Face Hub alone. A start that fails or is interrupted is stopped
    again, and its log kept. `any_text` accepts a first answer that nobody can read.
    """
    server = started.server
    _stop_before(server.name, progress)
    stack_files.write_files(files, server.folder)
    stacks.save(started)
    with _stopped_on_failure(engine, server):
        with _exported("HF_HUB_OFFLINE", "1" if offline else None):
            engine.start(server)
        return wait(engine, started, timeout_s=timeout_s, progress=progress, was_running=False, any_text=any_text)


def wait(
    engine: Engine,
    started: Started,
    *,
    timeout_s: float,
    progress: Progress,
    was_running: bool,
    any_text: bool = False,
) -> Running:
    """Wait until a server has answered."""
    ready = wait_ready(
        engine,
        started.server,
        timeout_s=timeout_s,
        on_phase=progress.phase,
        restarts=None if was_running else 0,
        checks=Checks(probe=functools.partial(probe, any_text=True)) if any_text else None,
    )
    report = engine.report(started.server)
    return Running(started=started, ready=ready, report=report, was_running=was_running)


def _stop_before(name: str, progress: Progress, *, unless_on: EngineName | None = None) -> None:
    """Stop what runs under this name as it was rendered before.

    Late, so that a start that cannot work leaves it running; only on the other engine it goes first, since
    there it holds the port. Raises GemmaspecError for one that cannot be stopped, whose files are then left as
    they are.
    """
    runs = False
    with contextlib.suppress(GemmaspecError):  # never started, or its engine does not answer
        before = stacks.find(name)
        if before.engine == unless_on:
            return
        engine = stacks.engine_of(before)
        runs = engine.state(before.server).status in ("running", "restarting")
    if runs:
        progress.note(f"{name} runs as it was rendered before; stopping that one")
        engine.stop(before.server)


@contextlib.contextmanager
def _exported(name: str, value: str | None) -> Iterator[None]:
    """As if the shell had exported it: both engines hand the environment on, and it is in no file of the stack."""
    if value is None or name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


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
