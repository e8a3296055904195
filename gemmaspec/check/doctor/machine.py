"""Check the memory, disks, clock and limits of a machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from gemmaspec.check.doctor.result import CheckResult, failed, ok, skipped, warning
from gemmaspec.run.machine.timekeeping import Clock

GB: Final = 10**9
OPEN_FILES: Final = 65535
"""What vLLM raises its own limit to (vllm/utils/system_utils.py, set_ulimit, 0.32.0)."""
SHM_BYTES: Final = 160 * 1024 * 1024
"""Bytes of /dev/shm that vLLM 0.32 requires at its start, according to its message."""
_SHM: Final = "/dev/shm"  # noqa: S108 - named
_DOCKER_SHM: Final = 64 * 1024 * 1024
_STATE_BYTES: Final = 1024**3
_SKEW_S: Final = 60
_STEP_S: Final = 1.0
_OLDEST: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""No correct clock can show an earlier date."""
_UNITS: Final = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def clock_row(clock: Clock) -> CheckResult:
    """Check the clock, because a wrong one breaks certificates, signed downloads and the order of logs."""
    fix = "sudo timedatectl set-ntp true    # timedatectl status"
    shown = datetime.fromtimestamp(clock.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if datetime.fromtimestamp(clock.now, UTC) < _OLDEST:
        return warning("clock", f"it cannot be {shown}", fix)
    if abs(clock.step) > _STEP_S:
        return warning("clock", f"it was changed by {clock.step:+.0f} s during the check", fix)
    if clock.skew is None:
        return ok("clock", f"{shown}, and it runs evenly; not compared with another clock: {clock.against}")
    if abs(clock.skew) > _SKEW_S:
        side = "ahead of" if clock.skew > 0 else "behind"
        return warning("clock", f"{shown} is {abs(clock.skew):.0f} s {side} {clock.against}", fix)
    return ok("clock", f"{shown}, within {_SKEW_S} s of {clock.against}")


def open_files_row(hard: int | None) -> CheckResult:
    """Check the limit of open files for a server of the process engine; None means unlimited."""
    if hard is None or hard >= OPEN_FILES:
        return ok("open files", f"up to {hard if hard is not None else 'any number'}")
    return warning(
        "open files", f"at most {hard}, but vLLM requires {OPEN_FILES}", f"ulimit -Hn {OPEN_FILES}    # as root"
    )


def shm_row(free: int | None) -> CheckResult:
    """Check the shared memory of this machine, which the process engine's server uses."""
    if free is None:
        return skipped("shared memory", f"{_SHM} is missing")
    if free < SHM_BYTES:
        message = f"{_SHM} has {free // 1024**2} MiB free, but vLLM 0.32 requires {SHM_BYTES // 1024**2} MiB"
        return failed("shared memory", message, "sudo mount -o remount,size=2G /dev/shm")
    return ok("shared memory", f"{_SHM} has {_gb(free)} free")


def container_shm_row(size: str | None, ipc: str) -> CheckResult:
    """Check the shared memory that a profile gives its container."""
    if ipc == "host":
        return ok("shared memory", "the machine's, because container.ipc is host")
    given = size_bytes(size) if size else _DOCKER_SHM
    if given >= SHM_BYTES:
        return ok("shared memory", f"container.shm_size is {size}")
    if size:
        size_line = f"container.shm_size is {size}"
    else:
        size_line = "docker gives a container 64 MiB"
    fix = "set `container: {shm_size: 1gb}` in the profile"
    return failed("shared memory", f"{size_line}, but vLLM 0.32 requires {SHM_BYTES // 1024**2} MiB", fix)


def size_bytes(size: str) -> int:
    """Return the bytes of a size in a profile: 32gb, 64m."""
    match = re.fullmatch(r"(\d+)([bkmg])b?", size.lower())
    if match:
        return int(match[1]) * _UNITS[match[2]]
    return 0


def disk_row(name: str, folder: str, free: int | None, needed: int | None) -> CheckResult:
    """Check the free space of a folder's disk against what must still be fetched; None if unknown."""
    if free is None:
        return skipped(name, f"{folder} is not visible from here")
    if needed is not None and needed > free:
        message = f"{folder} has {_gb(free)} free, {_gb(needed)} must still be fetched"
        return failed(name, message, f"df -h {folder}")
    if free < _STATE_BYTES:
        return failed(name, f"{folder} has {free // 1024**2} MiB free, but a start needs 1 GiB", f"df -h {folder}")
    rest = ""
    if needed == 0:
        rest = ", nothing to fetch"
    elif needed is not None:
        rest = f", {_gb(needed)} to fetch"
    return ok(name, f"{folder} has {_gb(free)} free{rest}")


def memory_row(total: int, available: int) -> CheckResult:
    """Report the machine's memory, without a profile to compare it with."""
    return ok("memory", f"{_gb(total)}, of which {_gb(available)} are available")


def _gb(count: int) -> str:
    return f"{count / GB:.1f} GB"
