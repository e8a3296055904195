"""The last start of a stack: by its record, by the process that holds its lock, or known to be somewhere else."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import UnreadableFile, other_owner
from gemmaspec.run.engine import record
from gemmaspec.run.engine.record import Record
from gemmaspec.run.engine.server import Server


class Elsewhere(EnvironmentMissing):
    """The server runs on another machine or in another container, which shares the state folder."""


def last_of(server: Server) -> Record | None:
    """Return the record of the last start, restored from its leader if it is lost, damaged or has no pid.

    Raises Elsewhere for a server that another machine or container started, and that still holds its lock.
    """
    try:
        last = record.read(server.run_dir)
    except UnreadableFile as error:
        if rescued := _rescued(server):
            return rescued
        if other_owner(error.path):
            raise
        hint = f"rm -r {error.path}    # after checking that no process is left: pgrep -af vllm"
        raise UnreadableFile(error.path, error.why, hint=hint) from None
    if last is None:
        return _rescued(server)
    if (where := last.elsewhere) and _is_held(server):
        raise Elsewhere(
            f"{server.name} was started in {where}, which shares this state folder, and it still runs",
            hint=f"gemmaspec down {server.name}    # there; or with --force here, if its processes are of this machine",
        )
    return record.completed(last)


def _rescued(server: Server) -> Record | None:
    holder = holder_of(server)
    if holder:
        return record.rescued(server.name, holder)
    return None


def _is_held(server: Server) -> bool:
    """Return whether any process holds the launcher's lock, also one that cannot be seen from here."""
    try:
        with (server.run_dir / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def holder_of(server: Server) -> int | None:
    """Return the pid that holds the launcher's lock, e.g. a launcher started by hand; None if nobody does.

    The answer comes from /proc/locks, because trying the lock even for a moment could stop a starting launcher.
    """
    try:
        seen = (server.run_dir / "lock").stat()
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    file = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    holders = [fields[4] for fields in map(str.split, held) if fields[1] == "FLOCK" and fields[5] == file]
    if holders:
        return int(holders[0])
    return None
