"""The result of one check of `doctor`, which may also be good, unlike a finding.

GPU, driver and CUDA according to nvidia-smi, and whether the image and this vLLM can run with them.

Check the memory, disks, clock and limits of a machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from packaging.version import Version

from gemmaspec.core.releases.backends import backend_for
from gemmaspec.core.releases.facts import Facts
from gemmaspec.run.machine.readings import Clock, Gpus

State = Literal["ok", "warning", "failed", "skipped"]
"""`failed`: it cannot start. `warning`: it may start nevertheless. `skipped`: not checked, with the reason."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    name: str
    state: State
    message: str
    fix: str | None = None
    """The command that fixes it."""


def ok(name: str, message: str) -> CheckResult:
    """Return the result of a check that found everything as it should be."""
    return CheckResult(name=name, state="ok", message=message)


def warning(name: str, message: str, fix: str | None = None) -> CheckResult:
    """Return the result of a check that does not prevent a start."""
    return CheckResult(name=name, state="warning", message=message, fix=fix)


def failed(name: str, message: str, fix: str | None) -> CheckResult:
    """Return the result of a check that prevents a start."""
    return CheckResult(name=name, state="failed", message=message, fix=fix)


def skipped(name: str, message: str) -> CheckResult:
    """Return the result of a check that was not made."""
    return CheckResult(name=name, state="skipped", message=message)


_CLAUSE: Final = re.compile(r"(cuda|driver|brand)(>=|<=|!=|=|>|<)([\w.]+)")
_UPDATE: Final = "sudo apt-get install --only-upgrade 'nvidia-driver-*'    # or https://www.nvidia.com/drivers"
_DRIVERS: Final = "lspci | grep -i nvidia    # a GPU without a driver: https://www.nvidia.com/drivers"
_TRITON: Final = "TRITON_ATTN"
_NATIVE_FP4: Final = "flashinfer_b12x"
"""The first release with NVFP4 kernels for SM 12.x (model_executor/kernels/linear/nvfp4)."""


def gpu_row(gpus: Gpus | None, *, wanted: bool, capability: str | None) -> CheckResult:
    """Check whether there is a GPU if the profile needs one, and whether it is its machine's kind."""
    if gpus is None and wanted:
        return failed("gpu", "nvidia-smi finds no GPU, but the profile's machine has one", _DRIVERS)
    if gpus is None:
        return ok("gpu", "no GPU, and none is needed")
    here = ", ".join(gpus.names)
    shown = f"{here}, compute capability {', '.join(dict.fromkeys(gpus.capabilities)) or 'unknown'}"
    if wanted and capability and gpus.capabilities and capability not in gpus.capabilities:
        return warning("gpu", f"{shown}; the profile is for {capability}")
    return ok("gpu", shown)


def lacks(capability: str | None, facts: Facts) -> Iterator[str]:
    """Yield what this vLLM lacks on a GPU, according to its sources."""
    if capability is None:
        return
    major = int(capability.partition(".")[0])
    text, images = (backend_for(facts.vllm, capability, masks=masks, fp8=False) for masks in (False, True))
    if text == images == _TRITON:
        yield "no FlashAttention or FlashInfer for Gemma 4: Triton attention"
    elif images == _TRITON:
        yield f"{text} for text, Triton attention where images are served"
    if major < 10:
        yield "no FP4 units: NVFP4 weights run through Marlin in 16 bits"
    if major == 12 and not _has_native_fp4(facts):
        yield "no NVFP4 kernels made for 12.x, which come with vLLM 0.24.0: Marlin or CUTLASS"


def capability_row(capability: str | None, facts: Facts | None) -> CheckResult | None:
    """Return a note on what the GPU lacks, if anything is known."""
    if facts is None or capability is None:
        return None
    limits = list(lacks(capability, facts))
    subject = f"vllm {facts.vllm} on {capability}: "
    return ok("kernels", subject + ("; ".join(limits) or "no known limitations"))


def driver_row(gpus: Gpus, *, require: str | None, cuda: str | None, where: str) -> CheckResult:
    """Check the driver against NVIDIA_REQUIRE_CUDA, which the container toolkit enforces, and CUDA_VERSION.

    `where` names their source; empty if it is unknown what will run.
    """
    shown = f"driver {gpus.driver}, which runs CUDA up to {gpus.cuda or 'an unknown release'}"
    if gpus.cuda is None:
        return warning("driver", f"{shown}; cannot compare with {where or 'anything'}", "nvidia-smi")
    if require and not any(_holds(clause, gpus) for clause in require.split()):
        needed = "; ".join(clause for clause in require.split() if clause.startswith("cuda")) or require[:80]
        return failed("driver", f"{shown}; {where} requires {needed}", _UPDATE)
    if not where:
        return ok("driver", shown)
    if not cuda or (wanted := _version(cuda)) is None:
        return ok("driver", f"{shown}; {where} does not declare its CUDA version")
    has = Version(gpus.cuda)
    if wanted.major > has.major:
        return failed("driver", f"{shown}; {where} has CUDA {cuda}", _UPDATE)
    if (wanted.major, wanted.minor) > (has.major, has.minor):
        # Within a major release older drivers run newer code, but for kernels that are compiled at run time.
        return warning("driver", f"{shown}; {where} has CUDA {cuda}, a newer minor release", _UPDATE)
    return ok("driver", f"{shown}; {where} has CUDA {cuda}")


def _holds(clause: str, gpus: Gpus) -> bool:
    """Return whether the driver meets one alternative: conditions joined by commas, ignoring the brand."""
    return all(_condition(text, gpus) for text in clause.split(","))


def _condition(text: str, gpus: Gpus) -> bool:
    clause = _CLAUSE.fullmatch(text)
    if clause is None:
        return False
    name, operator, value = clause.groups()
    if name == "brand":
        return True
    has, wanted = _version(gpus.cuda if name == "cuda" else gpus.driver), _version(value)
    if has is None or wanted is None:
        return False
    return {
        ">=": has >= wanted,
        "<=": has <= wanted,
        ">": has > wanted,
        "<": has < wanted,
        "=": has == wanted,
        "!=": has != wanted,
    }[operator]


def _has_native_fp4(facts: Facts) -> bool:
    flag = facts.flags.get("--linear-backend")
    choices: Sequence[str] | frozenset[str] = flag.choices or () if flag else ()
    return _NATIVE_FP4 in choices


def _version(text: str | None) -> Version | None:
    try:
        return Version(text or "")
    except ValueError:  # no version, or a number of thousands of digits
        return None


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
        return ok("clock", f"{shown}, runs evenly; could not be compared: {clock.against}")
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
    size_line = f"container.shm_size is {size}" if size else "docker gives a container 64 MiB"
    fix = "set `container: {shm_size: 1gb}` in the profile"
    return failed("shared memory", f"{size_line}, but vLLM 0.32 requires {SHM_BYTES // 1024**2} MiB", fix)


def size_bytes(size: str) -> int:
    """Return the bytes of a size in a profile: 32gb, 64m."""
    match = re.fullmatch(r"(\d+)([bkmg])b?", size.lower())
    return int(match[1]) * _UNITS[match[2]] if match else 0


def disk_row(name: str, folder: str, free: int | None, needed: int | None) -> CheckResult:
    """Check the free space of a folder's disk against what must still be fetched; None if unknown."""
    if free is None:
        return skipped(name, f"{folder} is not visible from here")
    if needed is not None and needed > free:
        message = f"{folder} has {_gb(free)} free, {_gb(needed)} must still be fetched"
        return failed(name, message, f"df -h {folder}")
    if free < _STATE_BYTES:
        return failed(name, f"{folder} has {free // 1024**2} MiB free, but a start needs 1 GiB", f"df -h {folder}")
    rest = "" if needed is None else ", nothing to fetch" if needed == 0 else f", {_gb(needed)} to fetch"
    return ok(name, f"{folder} has {_gb(free)} free{rest}")


def memory_row(total: int, available: int) -> CheckResult:
    """Report the machine's memory, without a profile to compare it with."""
    return ok("memory", f"{_gb(total)}, of which {_gb(available)} are available")


def _gb(count: int) -> str:
    return f"{count / GB:.1f} GB"
