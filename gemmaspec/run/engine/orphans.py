"""Servers whose stack folder was deleted while they ran: found by their marker and their working folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from gemmaspec.run.engine import record
from gemmaspec.run.engine.proc import boot_id, start_ticks
from gemmaspec.run.engine.record import MARKER, Record

_DELETED: Final = "/run/cwd (deleted)"
"""How Linux names a deleted working folder in /proc/PID/cwd."""


def orphans(stacks: Path) -> Mapping[str, Record]:
    """Return a record for each server that still runs although its folder below `stacks` is gone, by name.

    A process of another user cannot be read and is not found.
    """
    by_name: dict[str, Record] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            where = str((process / "cwd").readlink())
            name = where.removesuffix(_DELETED).removeprefix(f"{stacks}/")
            if where == f"{stacks}/{name}{_DELETED}" and "/" not in name:
                made = _record(name, int(process.name))
                if made and name not in by_name:
                    by_name[name] = made
    return {name: record.completed(run) for name, run in by_name.items()}


def _record(name: str, pid: int) -> Record | None:
    """Return the lost record, as far as one of its processes tells it."""
    marked, _, nonce = psutil.Process(pid).environ().get(MARKER, "").partition(":")
    if marked != name or not nonce or start_ticks(pid) is None:
        return None
    return Record(stack=name, nonce=nonce, boot_id=boot_id(), since_ticks=0, command=())


def marked(name: str, folder: Path) -> list[Record]:
    """Return a record for each start of a stack that has left processes here, read from those alone.

    They carry its mark, and their working folder is in the stack's `folder`, be it deleted. Needs no file and no disk.
    """
    by_nonce: dict[str, Record] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            if str((process / "cwd").readlink()).startswith(f"{folder}/") and (
                made := _record(name, int(process.name))
            ):
                by_nonce.setdefault(made.nonce, made)
    return [record.completed(run) for run in by_nonce.values()]
