"""Stacks of this machine: what was started, how, from which profile, and what is known of it now."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from gemmaspec.engine.server import Engine, EngineName, Server, State
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.files import UnreadableFile, read_regular, state_dir, write_whole
from gemmaspec.profile.find import profile_folders, profile_names

RECORD: Final = "record.json"
FAILED_LOG: Final = "failed.log"
"""The log of a start that failed, in the stack's folder."""

Outcome = Literal["starting", "ready", "failed", "stopped"]
"""What became of the last start, as the command that did it wrote down."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a start: what `restart` gives to `up` again."""

    profile: str
    """The profile as it was named: a name, or the absolute path of a file."""
    engine: EngineName
    overrides: tuple[str, ...] = ()
    no_spec: bool = False
    locked: bool = False
    """Whether it was rendered by its lock."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """The record of one start: enough to find the server again and to start it the same way."""

    engine: EngineName
    server: Server
    profile: str
    overrides: tuple[str, ...] = ()
    no_spec: bool = False
    locked: bool = False
    hub_cache: str | None = None
    """The Hugging Face cache of its server; None where that cannot be looked into from here."""
    known_good: str | None = None
    """Its id among the known good, once it was ready."""
    outcome: Outcome = "starting"
    since: float | None = None
    """Seconds since 1970 at the start; None in a record of an older gemmaspec."""
    before: Options | None = None
    """The options of the last start that became ready before this one."""

    @property
    def options(self) -> Options:
        """The options of this very start."""
        return Options(
            profile=self.profile,
            engine=self.engine,
            overrides=self.overrides,
            no_spec=self.no_spec,
            locked=self.locked,
        )

    @property
    def last_good_options(self) -> Options:
        """The options to start it with again: a start that failed leaves those of the one before it."""
        return self.before if self.outcome == "failed" and self.before else self.options


def stack_folder(name: str) -> Path:
    """Return where the stack of a profile lives on this machine."""
    return state_dir() / "stacks" / name


def save(started: Started) -> None:
    """Remember a stack, in its own folder."""
    write_whole(stack_folder(started.server.name) / RECORD, record_text(started))


def now() -> float:
    """Return the moment that a record calls `since`."""
    return round(time.time(), 3)


def record_text(started: Started) -> str:
    """Return a record as it is written."""
    server = dataclasses.asdict(started.server) | {"command": list(started.server.command)}
    record = {"schema": 1, **dataclasses.asdict(started), "server": server}
    return json.dumps(record, indent=2, default=str) + "\n"


def find(name: str) -> Started:
    """Return the record of a stack.

    Raises UsageError when nothing of that name was started here, UnreadableFile when its record is damaged.
    """
    if started := read_stack(name):
        return started
    names = ", ".join(names_of_stacks()) or "none"
    raise UsageError(
        f"no stack called {name!r} was started on this machine (started: {names})",
        hint=f"gemmaspec up {name}" if name in profile_names(profile_folders()) else "gemmaspec profile list",
    )


def read_stack(name: str) -> Started | None:
    """Return the record of a stack; None when there is none.

    Raises UnreadableFile when it is damaged, and when it is missing although a process was started.
    """
    record = stack_folder(name) / RECORD
    started = read_record(record)
    if started is None and _has_process(name):
        raise UnreadableFile(record, "it is missing, though a server was started")
    return started


def names_of_stacks() -> Sequence[str]:
    """Return the names of all stacks that were started, whether their records can be read or not."""
    folder = state_dir() / "stacks"
    with contextlib.suppress(OSError):
        return sorted(one.name for one in folder.iterdir() if os.path.lexists(one / RECORD) or _has_process(one.name))
    return []


def _has_process(name: str) -> bool:
    return os.path.lexists(stack_folder(name) / "run" / "process.json")


def started_stacks() -> Sequence[Started]:
    """Return all records that can be read, by name."""
    found = []
    for name in names_of_stacks():
        with contextlib.suppress(UnreadableFile):
            if started := read_record(stack_folder(name) / RECORD):
                found.append(started)
    return found


def engine_of(started: Started) -> Engine:
    """Return the engine that a stack was started with."""
    from gemmaspec.engine.choose import engine_named

    return engine_named(started.engine)


def look(started: Started, engine: Engine | None = None) -> State:
    """Return what is known of a stack's server now; a failure to look is `unknown`, with the reason.

    A stack that gemmaspec itself stopped, or whose start failed and was stopped, is absent even where its engine
    does not answer.
    """
    try:
        return (engine or engine_of(started)).state(started.server)
    except GemmaspecError as error:
        if started.outcome in ("stopped", "failed"):
            return State(status="absent", detail=f"{started.outcome} by gemmaspec; {error.message}")
        return State(status="unknown", detail=error.message, hint=error.hint)


def rescue(name: str) -> Started:
    """Return the least that stopping and looking need of a stack whose record is damaged.

    Only a stack for docker has a compose.yaml in its folder.
    """
    folder = stack_folder(name)
    engine: EngineName = "docker" if (folder / "compose.yaml").exists() else "process"
    server = Server(name=name, folder=folder, port=0, model="", speculates=False)
    return Started(engine=engine, server=server, profile=name)


def ensure_nothing_runs(name: str, error: UnreadableFile) -> None:
    """Raise EnvironmentMissing when a stack with a damaged record may run, or the record cannot be replaced."""
    state = look(rescue(name))
    if state.status in ("running", "restarting"):
        raise EnvironmentMissing(
            f"{error.message}, and the server runs ({state.detail})", hint=f"gemmaspec down {name}"
        )
    if state.status == "unknown":
        raise EnvironmentMissing(f"{error.message}; whether its server runs: {state.detail}", hint=state.hint)
    if error.path.is_dir() and not error.path.is_symlink():
        raise UnreadableFile(error.path, error.why, hint=f"rm -r {error.path}")


def read_record(record: Path) -> Started | None:
    """Return the record in a file; None when there is none. Raises UnreadableFile for one that is damaged."""
    text = read_regular(record)
    if text is None:
        return None
    try:
        return _started(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnreadableFile(record, "it is damaged") from None


def _started(content: Mapping[str, Any]) -> Started:
    server, before = content["server"], content.get("before")
    paths = {key: Path(server[key]) for key in ("folder", "python") if server.get(key)}
    if content["engine"] not in get_args(EngineName) or not isinstance(server["name"], str):
        raise ValueError("no such engine")
    outcome = content.get("outcome", "ready")
    if outcome not in get_args(Outcome):
        raise ValueError("no such outcome")
    return Started(
        engine=content["engine"],
        server=Server(**{**server, **paths, "command": tuple(server["command"])}),
        profile=str(content["profile"]),
        overrides=tuple(map(str, content["overrides"])),
        no_spec=bool(content["no_spec"]),
        locked=bool(content.get("locked", False)),
        hub_cache=content.get("hub_cache"),
        known_good=content.get("known_good"),
        outcome=outcome,
        since=float(content["since"]) if content.get("since") is not None else None,
        before=Options(**{**before, "overrides": tuple(map(str, before["overrides"]))}) if before else None,
    )
