"""`logs`: the log of the last start, or of the one before it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.core.files import UnreadableFile, write_whole
from gemmaspec.run.engine.lines import host_line
from gemmaspec.run.engine.merged import merged
from gemmaspec.run.engine.process import LOG
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.groups import is_group
from gemmaspec.run.kept.stacks import FAILED_LOG
from gemmaspec.run.ready.logline import without_secrets

_KEPT_LINES: Final = 20_000


def logs(name: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
    """Yield the lines; those of a profile with replicas are of all of them, each line after its replica's name.

    Raises UsageError if no stack of that name was started here, or there is no earlier log.
    """
    if is_group(name) and not previous:
        each = [functools.partial(_of_replica, each, follow=follow, tail=tail) for each in stacks.replicas_of(name)]
        yield from merged(each, follow=follow)
        return
    started = stacks.find(name)
    if not previous:
        yield from stacks.engine_of(started).logs(started.server, follow=follow, tail=tail)
        return
    lines = _lines(previous_log(name))
    yield from lines if tail is None else deque(lines, maxlen=tail)


def previous_log(name: str) -> Path:
    """Return the log of the previous start: the failed one, or the server before the one that runs."""
    folder = stacks.stack_folder(name)
    kept = [file for file in (folder / FAILED_LOG, folder / "run" / f"{LOG}.1") if file.is_file()]
    if not kept:
        raise UsageError(f"there is no log of an earlier start of {name}", hint=f"gemmaspec logs {name}")
    return max(kept, key=lambda file: file.stat().st_mtime)


def keep_log(engine: Engine, server: Server) -> Path | None:
    """Keep the log of a server that is about to be removed, for `logs --previous`. Return its file, None on failure."""
    target = server.folder / FAILED_LOG
    try:
        lines = (without_secrets(line) for line in engine.logs(server, tail=_KEPT_LINES))
        write_whole(target, "".join(f"{line}\n" for line in lines), mode=0o600)
    except (GemmaspecError, OSError):
        return None
    return target


def _of_replica(name: str, *, follow: bool, tail: int | None) -> Iterator[str]:
    """Yield a replica's lines after its name; one that says so if its log cannot be read."""
    try:
        for line in logs(name, follow=follow, tail=tail, previous=False):
            yield host_line(name, line)
    except GemmaspecError as error:
        yield host_line(name, f"(its log cannot be read: {error.message})")


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            for line in opened:
                yield line.rstrip("\n")
    except OSError as error:
        raise UnreadableFile(file, str(error.strerror)) from None
