"""What Linux says of a process: since when it has been running, in clock ticks of this boot."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing


def boot_id() -> str:
    """Return Linux's id of this boot; pids of another boot are meaningless."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat; None if the process does not exist."""
    fields = stat(pid)
    if fields:
        return int(fields[19])
    return None


def now_ticks() -> int:
    """Return the clock ticks since boot, on the clock of `start_ticks`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def stat(pid: int) -> list[str]:
    """Return /proc/PID/stat from its third field on; the second is a name with arbitrary characters.

    Raise EnvironmentMissing for a process that this user may not see (/proc mounted with hidepid).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        _refuse_hidden(pid)
        return []


def is_ending(pid: int) -> bool:
    """Return whether a process has ended but for what the kernel still does: its other threads, its memory, its files.

    Its leader is then a zombie; whoever started it may not have asked for its exit code yet either.
    """
    fields = stat(pid)
    return bool(fields) and fields[0] in ("Z", "X")


def _refuse_hidden(pid: int) -> None:
    try:
        os.kill(pid, 0)
    except PermissionError:
        raise EnvironmentMissing(
            f"pid {pid} belongs to another user, and this user may not inspect it",
            hint="sudo -u THAT-USER gemmaspec status",
        ) from None
    except OSError:
        return  # it ended
