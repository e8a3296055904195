"""Readings of this machine for the doctor. They change nothing; only a server's clock needs the network.

This machine's memory and GPU, as vLLM would find them.
"""

from __future__ import annotations

import email.utils
import resource
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.profile.device import Device, named
from gemmaspec.core.profile.machines import MACHINES, machine_of
from gemmaspec.run.machine import nvidia
from gemmaspec.run.machine.nvidia import Gpu
from gemmaspec.run.models.access import is_offline


def this_cpu() -> Device:
    """Return the machine without its accelerator. Free is MemAvailable: the page cache counts as free."""
    import psutil

    memory = psutil.virtual_memory()
    return Device(name="this machine", memory=memory.total, free=memory.available, cpu=True, here=True)


def this_gpu() -> Device | None:
    """Return the first NVIDIA GPU, or None without one. Raise EnvironmentMissing if nvidia-smi does not answer."""
    gpus = nvidia.gpus()
    return device_of(gpus[0], gpus=len(gpus)) if gpus else None


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


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Two readings of this machine's clocks, and one of another machine's."""

    now: float
    """Unix time."""
    step: float
    """Seconds by which the time of day moved more than the monotonic clock between the readings."""
    skew: float | None
    """Seconds by which this machine is ahead of a server; None if no server was reached."""
    against: str
    """The server, or why none was reached."""


_HTTP_S: Final = 5


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


def clock() -> Clock:
    """Return the current clocks; that of a server by the Date of its answer."""
    day, even = time.time(), time.monotonic()
    skew, against = _skew()
    step = (time.time() - day) - (time.monotonic() - even)
    return Clock(now=time.time(), step=step, skew=skew, against=against)


def hard_open_files() -> int | None:
    """Return the most files that a process may open; None for no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


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


def _skew() -> tuple[float | None, str]:
    """Return how far this machine is ahead of the Hub and the source, or None and the reason."""
    import requests
    from huggingface_hub import constants

    if is_offline():
        return None, "HF_HUB_OFFLINE is set"
    before = time.time()
    try:
        answer = requests.head(constants.ENDPOINT, timeout=_HTTP_S, allow_redirects=False)
        there = email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (requests.RequestException, KeyError, ValueError, TypeError):
        return None, f"{constants.ENDPOINT} does not state the time"
    return (before + time.time()) / 2 - there, constants.ENDPOINT
