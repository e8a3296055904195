"""Stacks of this machine: what was started, how, its state now, and what `smoke` and `watch` found last."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import AliasChoices, Field

from gemmaspec.core import records
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import UnreadableFile, state_dir
from gemmaspec.core.profile.engines import engine_of_files
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.foreign_words import nearest
from gemmaspec.core.server_state import Recorded, ServerState, state_of
from gemmaspec.run.engine.proc import boot_id
from gemmaspec.run.engine.server import Engine, EngineName, Server, State
from gemmaspec.run.kept.stack_lock import Caller

if TYPE_CHECKING:
    from gemmaspec.run.engine.record import Record


RECORD: Final = "record.json"
FAILED_LOG: Final = "failed.log"
"""The log of a start that failed, in the stack's folder."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a start, which `restart` passes to `up` again."""

    profile: str
    """The profile as given: a name, or the absolute path of a file."""
    engine: EngineName | None = None
    """None to choose one."""
    overrides: tuple[str, ...] = ()
    no_spec: bool = False
    locked: bool = False
    """Whether only what the profile's lock pins may run."""
    hosts: tuple[str, ...] = ()
    """The machines of a server that spans several, by rank; empty for all of fleet.yaml."""
    replica: int | None = None
    """Which replica of the profile it is, counted from 1; None for a profile's only server."""

    @property
    def command(self) -> str:
        """The `gemmaspec up` with these options; for a replica it starts what its profile lacks."""
        words = [
            "gemmaspec",
            "up",
            self.profile,
            *(("--engine", self.engine) if self.engine and not self.hosts else ()),
        ]
        for override in self.overrides:
            words += ["--set", override]
        if self.no_spec:
            words.append("--no-spec")
        if self.locked:
            words.append("--locked")
        if self.hosts:
            words += ["--hosts", ",".join(self.hosts)]
        return shlex.join(words)

    @classmethod
    def of(cls, other: Options, **more: Any) -> Self:
        """Return the options of `other`, with what else this kind of record holds."""
        copied = {field.name: getattr(other, field.name) for field in dataclasses.fields(Options)}
        return cls(**{**copied, **more})


@dataclass(frozen=True, kw_only=True)
class Started(Options):
    """The record of one start: enough to find the server and to start it again in the same way."""

    engine: EngineName
    server: Server
    hub_cache: str | None = None
    """The server's Hugging Face cache; None if it is not visible from this machine."""
    known_good: str | None = None
    """Its id among the known good stacks, once it was ready."""
    outcome: Recorded = "starting"
    since: float | None = None
    """Unix time of the start; None in a record of an older gemmaspec."""
    last_ready: Annotated[Options | None, Field(validation_alias=AliasChoices("last_ready", "before"))] = None
    """The options of the last start before this one that was neither undone nor measured, which became ready unless its
    command was killed; a record of 0.3.0 calls them `before`."""
    boot_id: str = ""
    """The boot of this machine in which it was started; "" in a record of an older gemmaspec."""
    by: Caller | None = None
    """The bench or tune that started it to measure it; None for a server to be used."""

    @property
    def is_of_another_boot(self) -> bool:
        """Whether this machine has been booted again since; never for a server on another machine."""
        away = self.server.nodes or self.server.reached_at is not None
        return bool(self.boot_id) and not away and self.boot_id != boot_id()

    @property
    def options(self) -> Options:
        """The options of this very start."""
        return Options.of(self, hosts=tuple(node.host for node in self.server.nodes))

    @property
    def was_undone(self) -> bool:
        """Whether its start failed or was interrupted, and was stopped."""
        return self.outcome in ("failed", "interrupted")

    @property
    def is_unwanted(self) -> bool:
        """Whether somebody has stopped it, or is about to; nobody then starts it again by himself."""
        return self.outcome in ("stopping", "stopped")

    def state(self, seen: State) -> ServerState | None:
        """Return the state of its server, which its engine sees like this; None if the engine cannot tell."""
        return state_of(self.outcome, seen.status, left=seen.left)

    @property
    def last_good_options(self) -> Options:
        """The options for the next restart; after a start that was undone or measured, those of the start before it."""
        if (self.was_undone or self.by) and self.last_ready:
            return self.last_ready
        return self.options

    @property
    def again(self) -> str:
        """The command that starts it again as it ran."""
        same = self.replica is None and self.last_good_options == self.options
        if same:
            return f"gemmaspec restart {self.server.name}"
        return self.options.command


class Orphaned(EnvironmentMissing):
    """A server runs whose stack's folder was deleted."""


def stack_folder(name: str) -> Path:
    """Return the folder of a profile's stack."""
    return state_dir() / "stacks" / name


def save(started: Started) -> None:
    """Save the record of a stack in its folder."""
    records.write(stack_folder(started.server.name) / RECORD, started)


def now() -> float:
    """Return the current time for a record's `since`."""
    return round(time.time(), 3)


def find(name: str) -> Started:
    """Return the record of a stack.

    Raises UsageError if no stack of that name was started here, UnreadableFile if its record is damaged, Orphaned if
    its folder was deleted while its server runs.
    """
    if started := read_stack(name):
        return started
    if replicas := replicas_of(name):
        raise UsageError(f"{name} has replicas; name one: {', '.join(replicas)}", hint=f"gemmaspec status {name}")
    if lost := orphaned().get(name):
        raise Orphaned(
            f"the folder of {name} was deleted, but its server still runs (pid {lost.pid})",
            hint=f"gemmaspec down {name}",
        )
    names = names_of_stacks()
    started_here = ", ".join(names) or "none"
    near = nearest(name, names)
    meant = f"; did you mean {near}?" if near else ""
    raise UsageError(
        f"no stack named {name!r} was started on this machine (started: {started_here}){meant}",
        hint=f"gemmaspec up {name}" if name in profile_names() else "gemmaspec status",
    )


def read_stack(name: str) -> Started | None:
    """Return the record of a stack, if any.

    Raises UnreadableFile if it is damaged, or missing although a process was started.
    """
    record = stack_folder(name) / RECORD
    started = records.read(Started, record)
    if started is None and _has_process(name):
        raise UnreadableFile(record, "missing, although a server was started")
    return started


def names_of_stacks() -> Sequence[str]:
    """Return the names of all started stacks, including those with unreadable records.

    Raises UnreadableFile if this user may not look.
    """
    folder = state_dir() / "stacks"
    try:
        return sorted(one.name for one in folder.iterdir() if os.path.lexists(one / RECORD) or _has_process(one.name))
    except PermissionError as error:
        raise UnreadableFile(folder, str(error.strerror)) from None
    except OSError:
        return []


def orphaned() -> Mapping[str, Record]:
    """Return the servers of this state folder that still run although their stack's folder was deleted, by name."""
    from gemmaspec.run.engine.orphans import orphans  # psutil is slow to import, and few commands look for them

    return orphans(state_dir() / "stacks")


def replicas_of(name: str) -> Sequence[str]:
    """Return the names of the replicas that were started of a profile, in their order."""
    return [replica.server.name for replica in started_replicas(name)]


def started_replicas(name: str) -> Sequence[Started]:
    """Return the records of the replicas that were started of a profile, in their order."""
    replicas = [one for one in started_stacks() if one.replica is not None]
    ours = [one for one in replicas if one.server.name == f"{name}-{one.replica}"]
    return sorted(ours, key=lambda replica: replica.replica or 0)


def _has_process(name: str) -> bool:
    return os.path.lexists(stack_folder(name) / "run" / "process.json")


def started_stacks() -> Sequence[Started]:
    """Return all readable records, by name."""
    stacks = []
    for name in names_of_stacks():
        if started := records.kept(Started, stack_folder(name) / RECORD):
            stacks.append(started)
    return stacks


def engine_of(started: Started) -> Engine:
    """Return the engine that a stack was started with."""
    from gemmaspec.run.engine.choose import engine_with

    return engine_with(started.engine, started.server.nodes)


def look(started: Started, engine: Engine | None = None) -> State:
    """Return the current state of a stack's server; `unknown`, with the reason, if it cannot be determined.

    A stack that gemmaspec itself stopped, or whose start failed and was stopped, is absent even if its engine does
    not answer. One on several machines is not: a host that does not answer may not have been stopped.
    """
    try:
        return (engine or engine_of(started)).state(started.server)
    except GemmaspecError as error:
        if (started.was_undone or started.outcome == "stopped") and not started.server.nodes:
            return State(status="absent", detail=f"{started.outcome} by gemmaspec; {error.message}")
        return State(status="unknown", detail=error.message, hint=error.hint)


def rescue(name: str) -> Started:
    """Return the minimal record for stopping and checking a stack whose record is damaged."""
    folder = stack_folder(name)
    engine = engine_of_files(frozenset(file.name for file in folder.iterdir()) if folder.is_dir() else frozenset())
    server = Server(name=name, folder=folder, port=0, model="", speculates=False)
    return Started(engine=engine, server=server, profile=name)


def ensure_nothing_runs(name: str, error: UnreadableFile) -> None:
    """Raise EnvironmentMissing if a stack with a damaged record may run, or its record cannot be replaced."""
    state = look(rescue(name))
    if state.lives:
        raise EnvironmentMissing(
            f"{error.message}, and its server runs ({state.detail})", hint=f"gemmaspec down {name}"
        )
    if state.status == "unknown":
        raise EnvironmentMissing(f"{error.message}; whether its server runs: {state.detail}", hint=state.hint)
    if error.path.is_dir() and not error.path.is_symlink():
        raise UnreadableFile(error.path, error.why, hint=f"rm -r {error.path}")


def warn_of_neighbours(name: str, note: Callable[[str], None]) -> None:
    """Say which other stacks of gemmaspec run on this machine, because they slow down what is measured.

    A stack whose state cannot be determined is left out: whether it costs anything is not known.
    """
    others = [started for started in started_stacks() if started.server.name != name and not started.server.nodes]
    running = [other.server.name for other in others if look(other).lives]
    if not running:
        return
    verb = "runs" if len(running) == 1 else "run"
    note(f"warning: {', '.join(running)} {verb} on this machine too, and may slow down what is measured")
    note(f"    gemmaspec down {running[0]}")
