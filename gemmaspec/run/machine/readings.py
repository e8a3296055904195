"""Readings of this machine for the doctor. They change nothing; only a server's clock needs the network.

This machine's memory and GPU, as vLLM would find them.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.profile.device import Device, named
from gemmaspec.core.profile.machines import MACHINES, machine_of
from gemmaspec.run.machine import nvidia
from gemmaspec.run.machine.nvidia import Gpu


def this_cpu() -> Device:
    """Return the machine without its accelerator. Free is MemAvailable: the page cache counts as free."""
    import psutil

    memory = psutil.virtual_memory()
    return Device(name="this machine", memory=memory.total, free=memory.available, cpu=True, here=True)


def this_gpu(taken: Sequence[int] = (0,)) -> Device | None:
    """Return the NVIDIA GPU that has the least memory of those that are taken, or None without one.

    `taken`: their numbers in nvidia-smi. vLLM gives each GPU of a server as many blocks of the cache as the
    smallest one has room for (vllm/v1/core/kv_cache_utils.py, get_kv_cache_configs). Raise EnvironmentMissing if
    nvidia-smi does not answer.
    """
    gpus = nvidia.gpus()
    if not gpus:
        return None
    there = [gpus[number] for number in taken if number < len(gpus)] or [gpus[0]]
    least = min(there, key=lambda gpu: (gpu.memory or 0, gpu.free or 0))
    each = tuple(device_of(gpu, gpus=len(gpus)) for gpu in there) if len(there) > 1 else ()
    return replace(device_of(least, gpus=len(gpus)), each=each)


def device_of(gpu: Gpu, *, gpus: int = 1) -> Device:
    """Return a GPU of this machine as a device.

    Of its memory the driver keeps some percent, which nvidia-smi counts and CUDA does not: a GPU that is known by name
    has what CUDA reports.

    A GB10 has no memory of its own: total and free are then the machine's, as vLLM takes them
    (vllm/utils/mem_utils.py, MemorySnapshot).
    """
    import psutil

    memory, known = psutil.virtual_memory(), machine_of(gpu.name)
    machine = named(MACHINES[known]) if known else None
    total = memory.total if gpu.memory is None else gpu.memory
    return Device(
        name=gpu.name,
        memory=min(total, machine.memory) if machine else total,
        free=memory.available if gpu.free is None else gpu.free,
        bandwidth=machine.bandwidth if machine else None,
        capability=gpu.capability,
        here=True,
        gpus=gpus,
    )


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """What nvidia-smi reports."""

    names: tuple[str, ...]
    driver: str
    cuda: str | None
    """The newest CUDA that the driver can run, such as 13.0."""
    capabilities: tuple[str, ...]
    """Compute capability of each, such as 12.1; empty if the driver is too old to report it."""


def gpus() -> Gpus | None:
    """Return the GPUs that nvidia-smi shows; None if it is missing, fails or shows none."""
    try:
        cards = nvidia.gpus()
        cuda = nvidia.newest_cuda() if cards else None
    except EnvironmentMissing:
        return None
    if not cards:
        return None
    return Gpus(
        names=tuple(card.name for card in cards),
        driver=cards[0].driver,
        cuda=cuda,
        capabilities=tuple(card.capability for card in cards if card.capability),
    )


def hard_open_files() -> int | None:
    """Return the most files that a process may open; None for no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return None
    return hard


def free_bytes(folder: Path | None) -> int | None:
    """Return the free space at a folder, existing or not; None if it is unknown."""
    if folder is None:
        return None
    try:
        there = next(above for above in (folder.absolute(), *folder.absolute().parents) if above.exists())
        return shutil.disk_usage(there).free
    except OSError:
        return None


def disk_of(folder: Path) -> int | None:
    """Return the number of the disk that holds a folder, existing or not; None if it is unknown."""
    try:
        there = next(above for above in (folder.absolute(), *folder.absolute().parents) if above.exists())
        return there.stat().st_dev
    except OSError:
        return None
