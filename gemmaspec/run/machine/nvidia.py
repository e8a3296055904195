"""The NVIDIA GPUs of this machine, as nvidia-smi reports them. The one place that runs nvidia-smi."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing

_FIELDS: Final = "name,driver_version,compute_cap,memory.total,memory.free"
_LOAD_FIELDS: Final = "clocks.sm,power.draw,temperature.gpu,memory.used"
_FORMAT: Final = "--format=csv,noheader,nounits"
_MIB: Final = 2**20
_TIMEOUT_S: Final = 20
_MOST_GPUS: Final = 64
_MOST_TEXT: Final = 20_000
_CUDA: Final = re.compile(r"CUDA Version\s*:\s*(\d{1,3}\.\d{1,3})\b")
_DRIVER: Final = re.compile(r"\d[\w.]{0,31}")
_CAPABILITY: Final = re.compile(r"\d{1,3}\.\d{1,3}")
_NUMBER: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. Memory is in bytes."""

    name: str
    driver: str
    capability: str | None
    """CUDA compute capability, such as 12.1; None if the driver is too old to report it."""
    memory: int | None
    """None on a GPU that shares the CPU's memory, such as GB10."""
    free: int | None


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """What one GPU is doing now. A value is None if the driver does not report it."""

    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    memory_used: int | None
    """Bytes."""


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine; empty without nvidia-smi or without a GPU.

    Raise EnvironmentMissing if nvidia-smi does not answer.
    """
    return tuple(parse_gpus(_query(_FIELDS)))


def loads() -> tuple[GpuReading, ...]:
    """Return what each GPU is doing now, in the order of `gpus`.

    Raise EnvironmentMissing if nvidia-smi does not answer.
    """
    return tuple(parse_loads(_query(_LOAD_FIELDS)))


def power() -> float | None:
    """Return the power that all GPUs draw together, in watts; None if it is unknown."""
    with contextlib.suppress(EnvironmentMissing):
        drawn = [gpu.power_w for gpu in loads()]
        if drawn and all(watts is not None for watts in drawn):
            return sum(watts for watts in drawn if watts is not None)
    return None


def newest_cuda() -> str | None:
    """Return the newest CUDA that the driver can run, such as 13.0; None if nvidia-smi does not say.

    Raise EnvironmentMissing if nvidia-smi does not answer.
    """
    return parse_cuda(_run())


def parse_gpus(text: str) -> Iterator[Gpu]:
    """Yield the GPUs in the answer to a query for name, driver, capability, total and free memory."""
    for name, driver, capability, memory, free in _rows(text, 5):
        if not _DRIVER.fullmatch(driver):
            continue
        known = None
        # a DGX Spark answers [N/A]: its memory is the machine's
        if memory.isdecimal() and free.isdecimal() and len(memory) < 12 and len(free) < 12:
            known = int(memory) * _MIB, int(free) * _MIB
        yield Gpu(
            name="".join(filter(str.isprintable, name))[:80],
            driver=driver,
            capability=capability if _CAPABILITY.fullmatch(capability) else None,
            memory=known[0] if known else None,
            free=known[1] if known else None,
        )


def parse_loads(text: str) -> Iterator[GpuReading]:
    """Yield the loads in the answer to a query for SM clock, power, temperature and used memory."""
    for clock, power, temperature, used in _rows(text, 4):
        bytes_used = _number(used)
        yield GpuReading(
            clock_mhz=_number(clock),
            power_w=_number(power),
            temperature_c=_number(temperature),
            memory_used=None if bytes_used is None else round(bytes_used * _MIB),
        )


def parse_cuda(summary: str) -> str | None:
    """Return the CUDA version in the answer to plain `nvidia-smi`."""
    cuda = _CUDA.search(summary[:_MOST_TEXT])
    if cuda:
        return cuda[1]
    return None


def _rows(text: str, columns: int) -> Iterator[Sequence[str]]:
    for line in text[:_MOST_TEXT].splitlines()[:_MOST_GPUS]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == columns:
            yield cells


def _number(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    return None


def _query(fields: str) -> str:
    return _run(f"--query-gpu={fields}", _FORMAT)


def _run(*arguments: str) -> str:
    """Return what nvidia-smi prints; "" if it is missing or fails."""
    if not shutil.which("nvidia-smi"):
        return ""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        raise EnvironmentMissing("nvidia-smi does not answer", hint="nvidia-smi") from None
    if done.returncode == 0:
        return done.stdout
    return ""
