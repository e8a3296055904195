"""How many processes Linux has ended for want of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final


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
