"""This machine's memory and GPU, as vLLM would find them."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

import psutil

from gemmaspec.errors import EnvironmentMissing
from gemmaspec.fit.machine import Device

_QUERY: Final = ("--query-gpu=name,memory.total,memory.free,compute_cap", "--format=csv,noheader,nounits")
_MIB: Final = 2**20
_TIMEOUT_S: Final = 10


def this_cpu() -> Device:
    """The machine without its accelerator. Free is MemAvailable: the page cache counts as free, since it gives way."""
    memory = psutil.virtual_memory()
    return Device(name="this machine", memory=memory.total, free=memory.available, cpu=True, here=True)


def this_gpu() -> Device | None:
    """The first NVIDIA GPU; None where there is none.

    A GB10 has no memory of its own and nvidia-smi says so: total and free are then those of the machine, as vLLM
    takes them (vllm/utils/mem_utils.py, MemorySnapshot).
    """
    if not shutil.which("nvidia-smi"):
        return None
    try:
        done = subprocess.run(["nvidia-smi", *_QUERY], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        raise EnvironmentMissing("nvidia-smi does not answer", hint="nvidia-smi") from None
    return parsed(done.stdout) if done.returncode == 0 else None


def parsed(text: str) -> Device | None:
    """The GPU of the first line of nvidia-smi's answer, and how many lines there are."""
    lines = [line for line in text.splitlines() if line.count(",") == 3]
    if not lines:
        return None
    name, total, free, capability = (part.strip() for part in lines[0].split(","))
    memory = psutil.virtual_memory()
    own = total.isdigit() and free.isdigit()
    return Device(
        name=name,
        memory=int(total) * _MIB if own else memory.total,
        free=int(free) * _MIB if own else memory.available,
        capability=capability,
        here=True,
        gpus=len(lines),
    )
