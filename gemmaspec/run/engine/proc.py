"""What Linux says of a process: since when it has been running, in clock ticks of this boot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

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


def memory_kills() -> int | None:
    """Return how many processes the kernel has killed since boot because memory ran out, of a group or of the machine.

    None where it does not count them (before Linux 4.13).
    """
    rows = (line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
    return next((int(count) for name, count in rows if name == "oom_kill"), None)


_OF_GROUPS: Final = Path("/sys/fs/cgroup")


def memory_group() -> Path | None:
    """Return the file in which the kernel counts what it has killed of this process's control group for memory.

    That is memory.events of a group of version 2, and memory.oom_control of one of version 1. None for the root group,
    and where the groups cannot be seen, as in some containers.
    """
    try:
        rows = [row.split(":", 2) for row in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    for _, controllers, path in rows:
        file = None
        if controllers == "":
            file = _OF_GROUPS / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            file = _OF_GROUPS / "memory" / path.lstrip("/") / "memory.oom_control"
        if file and group_kills(file) is not None:
            return file
    return None


def group_kills(file: Path) -> int | None:
    """Return how many processes of a control group the kernel has killed because memory ran out; None if unknown."""
    try:
        rows = [line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines()]
        return next((int(row[1]) for row in rows if row[0] == "oom_kill"), None)
    except (OSError, ValueError, IndexError):
        return None


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
