"""Replicas of a profile on this machine: what was started, behind which router, and what changed last."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gemmaspec.core import records
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import make_folder, read_regular, state_dir
from gemmaspec.core.profile.replica import replica_name
from gemmaspec.run.engine.router import RouterServer
from gemmaspec.run.engine.routing import RouterPlace
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Options, stack_folder

GROUP: Final = "group.json"
AUDIT: Final = "audit.log"
"""One line for each step of every change, in the folder that `status` names."""
_MOST_AUDIT: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Group:
    """The record of a profile's replicas."""

    name: str
    options: Options
    """The options of the last `up`, which `restart` uses again."""
    replicas: tuple[int, ...]
    """Replicas that there should be, counted from 1."""
    router: RouterServer
    drain_s: float
    stopped: bool = False
    """Whether `down` ended all of it."""
    complete: bool = True
    """Whether the last change was carried out to its end."""
    before: Mapping[str, str | None] = field(default_factory=dict)
    """What the last change replaced: the name of each replica, and the known good stack that it last ran; None for
    one that was never ready."""
    options_before: Options | None = None
    """The options before the last change."""

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the replicas' stacks."""
        return tuple(replica_name(self.name, index) for index in self.replicas)

    @property
    def audit(self) -> Path:
        """The file of the audit."""
        return stack_folder(self.name) / AUDIT


def place_of(server: Server, index: int) -> RouterPlace:
    """Return a replica as the router knows it. A replica on another host would have that host's address here."""
    return RouterPlace(index=index, url=server.base_url)


def read(name: str) -> Group | None:
    """Return the record of a profile's replicas, if any. Raises UnreadableFile if it is damaged."""
    return records.read(Group, stack_folder(name) / GROUP, hint=f"gemmaspec down {name}-1    # and so on")


def find(name: str) -> Group:
    """Return the record of a profile's replicas. Raises UsageError if there are none."""
    if group := read(name):
        return group
    raise UsageError(f"{name} has no replicas on this machine", hint="gemmaspec status")


def names() -> Sequence[str]:
    """Return the names of all profiles with replicas on this machine."""
    return sorted(file.parent.name for file in (state_dir() / "stacks").glob(f"*/{GROUP}"))


def is_group(name: str) -> bool:
    """Return whether replicas of a profile were started here, and nothing else runs under its name."""
    if read(name) is None:
        return False
    alone = stacks.read_stack(name)
    return not alone or stacks.look(alone).gone


def each_of(names: Sequence[str]) -> list[str]:
    """Return the stacks that these names mean: a profile with replicas means all of them."""
    servers: list[str] = []
    for name in names:
        servers += stacks.replicas_of(name) if is_group(name) else [name]
    return servers


def save(group: Group) -> None:
    """Save the record."""
    records.write(stack_folder(group.name) / GROUP, group)


def lives(group: Group) -> bool:
    """Return whether the router or a replica runs, or may run."""
    from gemmaspec.run.engine.router import state

    states = [stacks.look(stack) for name in group.members if (stack := stacks.read_stack(name))]
    return not all(seen.gone for seen in (state(group.router), *states))


def write_audit(name: str, command: str, step: str, result: str) -> None:
    """Append one line: when, who, with which command, what was done, and how it ended.

    Raises EnvironmentMissing if it cannot be written, so that no change goes unrecorded.
    """
    file = stack_folder(name) / AUDIT
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{now} {_who()} {command} (pid {os.getpid()}): {step}: {' '.join(result.split())}\n"
    try:
        make_folder(file.parent)
        if file.is_file() and file.stat().st_size > _MOST_AUDIT:
            file.replace(file.with_name(f"{AUDIT}.1"))
        with file.open("a", encoding="utf-8") as opened:
            opened.write(line)
    except OSError as error:
        raise EnvironmentMissing(f"cannot write {file}: {error.strerror}", hint=f"ls -ld {file.parent}") from None


def last_audit(group: Group) -> Sequence[str]:
    """Return the last three lines of the audit."""
    try:
        text = read_regular(group.audit, limit=2 * _MOST_AUDIT)
    except GemmaspecError:
        return []
    return (text or b"").decode("utf-8", "replace").splitlines()[-3:]


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
