"""Stacks of this machine: what was started, how, and from which profile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.engine.server import Engine, EngineName, Server
from gemmaspec.errors import UsageError
from gemmaspec.files import state_dir, write_whole

RECORD: Final = "record.json"


@dataclass(frozen=True, kw_only=True)
class Started:
    """The record of one `up`: enough to find the server again and to start it the same way."""

    engine: EngineName
    server: Server
    profile: str
    """The profile as it was named: a name, or the absolute path of a file."""
    overrides: tuple[str, ...] = ()
    no_spec: bool = False
    locked: bool = False
    """Whether it was rendered by its lock."""
    hub_cache: str | None = None
    """The Hugging Face cache of its server; None where that cannot be looked into from here."""
    known_good: str | None = None
    """Its id among the known good, once it was ready."""


def stack_folder(name: str) -> Path:
    """Where the stack of a profile lives on this machine."""
    return state_dir() / "stacks" / name


def save(started: Started) -> None:
    """Remember a stack, in its own folder."""
    write_whole(stack_folder(started.server.name) / RECORD, record_text(started))


def record_text(started: Started) -> str:
    """A record as it is written."""
    server = dataclasses.asdict(started.server) | {"command": list(started.server.command)}
    record = {"schema": 1, **dataclasses.asdict(started), "server": server}
    return json.dumps(record, indent=2, default=str) + "\n"


def find(name: str) -> Started:
    """The record of a stack. Raises UsageError when nothing of that name was started here."""
    started = read_record(stack_folder(name) / RECORD)
    if started:
        return started
    names = ", ".join(other.server.name for other in started_stacks()) or "none"
    raise UsageError(
        f"no stack called {name!r} was started on this machine (started: {names})",
        hint=f"gemmaspec up {name}",
    )


def started_stacks() -> Sequence[Started]:
    """All records, by name."""
    records = sorted((state_dir() / "stacks").glob(f"*/{RECORD}"))
    return [started for record in records if (started := read_record(record))]


def engine_of(started: Started) -> Engine:
    """The engine that a stack was started with."""
    from gemmaspec.engine.choose import engine_named

    return engine_named(started.engine)


def read_record(record: Path) -> Started | None:
    """The record in a file; None when there is none, or it is none."""
    try:
        content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        server = content["server"]
        paths = {key: Path(server[key]) for key in ("folder", "python") if server.get(key)}
        return Started(
            engine=content["engine"],
            server=Server(**{**server, **paths, "command": tuple(server["command"])}),
            profile=content["profile"],
            overrides=tuple(content["overrides"]),
            no_spec=content["no_spec"],
            locked=content.get("locked", False),
            hub_cache=content.get("hub_cache"),
            known_good=content.get("known_good"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
