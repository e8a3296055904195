"""`gc`: unused files that take disk space: runtimes, known good stacks, old logs, fetched prompts, volumes."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from gemmaspec.core import records
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, ProfileError, UsageError
from gemmaspec.core.files import UnreadableFile, state_dir
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.state_id import state_id
from gemmaspec.run.engine.server import Node
from gemmaspec.run.engine.together import together
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.fleet import load_fleet, nodes_of
from gemmaspec.run.runtime.managed import remove_folder, runtime_dir
from gemmaspec.serve import knowngood
from gemmaspec.serve.prepare import runtime_spec

if TYPE_CHECKING:
    from gemmaspec.run.engine.volumes import Volume

Kind = Literal["runtime", "known-good", "log", "prompts", "volume"]
_WEEK_S: Final = 7 * 86_400
_PREFIX: Final = "gemmaspec-"
_HOSTS_S: Final = 45.0
"""Seconds in which every machine must name its volumes, over ssh too."""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """Something unused."""

    kind: Kind
    name: str
    """A path, or the name of a volume."""
    bytes: int | None
    """None if unknown."""
    why: str
    host: str | None = None
    """Of a volume on a machine of fleet.yaml: its name there."""
    node: Node | None = None
    """How that machine is reached."""


def garbage(*, volumes: bool, note: Callable[[str], None]) -> Iterator[Garbage]:
    """Yield what could be freed; known good stacks, logs and prompts only when they are older than a week.

    What gemmaspec is not sure about is kept and noted. Volumes hold downloaded models: only on request, and only those
    of this state folder's stacks, never another's.
    """
    before = time.time() - _WEEK_S
    for look in (_runtimes, _known_good, _logs, _prompts, *((_volumes,) if volumes else ())):
        yield from look(before, note)


def free(piece: Garbage) -> None:
    """Remove it. Raises EnvironmentMissing if that fails."""
    path = Path(piece.name)
    try:
        if piece.kind == "volume":
            _remove_volume(piece)
        elif piece.kind == "runtime":
            remove_folder(path)
        elif piece.kind in ("known-good", "prompts"):
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentMissing(f"cannot remove {path}: {error.strerror}", hint=f"ls -ld {path}") from None


def _runtimes(_before: float, note: Callable[[str], None]) -> Iterator[Garbage]:
    folder = state_dir() / "runtimes"
    try:
        used = {path.resolve() for path in _runtimes_in_use()}
    except UnreadableFile as error:
        note(f"{error.message}, so its runtime is unknown; keeping all runtimes")
        return
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and not path.name.startswith(".") and path.resolve() not in used:
            why = "not used by any profile, stack or known good stack"
            yield Garbage(kind="runtime", name=str(path), bytes=_size(path), why=why)


def _runtimes_in_use() -> Iterator[Path]:
    for record in _records():
        started = records.read(stacks.Started, record)
        if started and started.server.python:
            yield from started.server.python.parents
    for file in profile_names().values():
        with contextlib.suppress(GemmaspecError):  # not valid, or for docker alone
            yield runtime_dir(runtime_spec(load_profile(str(file))))


def _records() -> list[Path]:
    state = state_dir()
    return [*state.glob(f"stacks/*/{stacks.RECORD}"), *state.glob(f"known-good/*/*/{stacks.RECORD}")]


def _known_good(before: float, _note: Callable[[str], None]) -> Iterator[Garbage]:
    for name in knowngood.names():
        for good in knowngood.known_goods(name)[1:]:
            if good.folder.stat().st_mtime < before:
                why = f"not the latest known good stack of {name}"
                yield Garbage(kind="known-good", name=str(good.folder), bytes=_size(good.folder), why=why)


def _logs(before: float, _note: Callable[[str], None]) -> Iterator[Garbage]:
    stacks_folder = state_dir() / "stacks"
    for path in sorted([*stacks_folder.glob("*/failed.log"), *stacks_folder.glob("*/run/server.log.1")]):
        stat = path.lstat()
        if stat.st_mtime < before:
            yield Garbage(kind="log", name=str(path), bytes=stat.st_size, why="the log of an earlier start")


def _prompts(before: float, _note: Callable[[str], None]) -> Iterator[Garbage]:
    for path in sorted((state_dir() / "prompts").glob("*/*")):
        if path.is_dir() and not path.is_symlink() and path.stat().st_mtime < before:
            why = "a data set of --prompts, which is fetched again when it is named"
            yield Garbage(kind="prompts", name=str(path), bytes=_size(path), why=why)


def _volumes(_before: float, note: Callable[[str], None]) -> Iterator[Garbage]:
    """Yield the unused volumes of the docker CLI's daemon, then those of each other machine that this state knows.

    Only volumes with the label of this state folder: another folder may have a stack of the same name. One in memory
    without a label is taken if this state folder knows its stack, and no volume of the stack has another's label.
    """
    from gemmaspec.run.engine import volumes

    try:
        own = state_id()
    except EnvironmentMissing as error:
        note(f"{error.message}; volumes were not checked")
        return
    nodes = [node for node in _known_nodes(note) if not volumes.same_daemon(node)]
    calls = {"": functools.partial(volumes.unused, _PREFIX)}
    calls |= {node.host: functools.partial(volumes.unused, _PREFIX, node) for node in nodes}
    done = together(calls, seconds=_HOSTS_S)
    for node in (None, *nodes):
        host = node.host if node else None
        unused = done[host or ""]
        if isinstance(unused, GemmaspecError):
            if host and not unused.message.startswith(f"{host}: "):
                where = f"{host}: "
            else:
                where = ""
            note(f"{where}{unused.message}; {'its ' if host else ''}volumes were not checked")
            continue
        for volume in unused:
            stack = volume.project.removeprefix(_PREFIX)
            known_here = stacks.stack_folder(stack).exists()
            made_here = bool(own) and volume.state == own
            # Up to now Compose made the volume of a watch, without a label. It is empty while nothing uses it.
            if made_here or (volume.in_memory and not volume.state and known_here):
                yield Garbage(kind="volume", name=volume.name, bytes=None, why=_why(volume), host=host, node=node)
            elif not volume.state and known_here:
                note(f"keeping {volume.name}, which has no label of a state folder: docker volume rm {volume.name}")


def _why(volume: Volume) -> str:
    """Return why a volume can go, and what brings back what is in it."""
    stack = volume.project.removeprefix(_PREFIX)
    if volume.in_memory:
        return f"{stack} does not run; it is the folder in memory of its watch, which up makes again"
    return f"{stack} does not run; its caches, and models downloaded into it, are fetched again by up"


def _known_nodes(note: Callable[[str], None]) -> list[Node]:
    """Return the machines of fleet.yaml, and those that stacks of this state folder were started on."""
    nodes: dict[str, Node] = {}
    with contextlib.suppress(UsageError):  # there is no fleet.yaml
        try:
            nodes |= {node.docker: node for node in nodes_of(load_fleet().hosts)}
        except ProfileError as error:
            note(f"{error.message}; the volumes of its hosts were not checked")
    for record in _records():
        with contextlib.suppress(UnreadableFile):
            started = records.read(stacks.Started, record)
            nodes = {**{node.docker: node for node in (started.server.nodes if started else ())}, **nodes}
    return list(nodes.values())


def _remove_volume(piece: Garbage) -> None:
    from gemmaspec.run.engine import volumes

    volumes.remove(piece.name, piece.node)


def _size(folder: Path) -> int:
    """Return the size of a folder in bytes."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).lstat().st_size
    return total
