"""The memory and speed of the machine that a server would run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmaspec.core.profile.machines import MACHINES, Machine, machine_of

GB: Final = 10**9
GIB: Final = 2**30
_INTEGRATED: Final = frozenset({"8.7", "11.0", "12.1"})
"""Compute capabilities whose GPU shares the CPU's memory (vllm/utils/mem_utils.py, 0.19.0: Orin, Thor, GB10)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Memory in bytes, bandwidth in bytes per second."""

    name: str
    memory: int
    """Total memory of the accelerator, or of the machine without one."""
    free: int | None = None
    """Free memory; None for another machine than this one."""
    bandwidth: float | None = None
    capability: str | None = None
    """CUDA compute capability, such as 12.1."""
    cpu: bool = False
    here: bool = False
    """Whether its values were read on this machine."""
    gpus: int | None = None
    """Maximum number of GPUs in one such machine, each with that memory and bandwidth; None if unknown."""
    link: float | None = None
    """Bytes per second to another such machine, one way; None if unknown."""
    each: tuple[Device, ...] = ()
    """The GPUs that a server takes of this machine, in its order; empty where they are alike or not known."""

    @property
    def unified(self) -> bool:
        """Whether CPU and GPU share the memory, so that vLLM treats MemAvailable as free memory."""
        return self.capability in _INTEGRATED

    @property
    def major(self) -> int:
        """The major version of the compute capability; 0 if unknown."""
        if self.capability:
            return int(self.capability.split(".")[0])
        return 0


def device_of(machine: Machine) -> Device:
    """Return a machine by its name in profiles; without a fixed amount of memory it has none."""
    unsized = Device(name=machine.name, memory=0, capability=machine.compute_capability, cpu=not machine.gpus)
    return named(machine) or unsized


def size_as_called(device: Device) -> str:
    """Return a GPU's memory as people call it: 24 GB for the 23.52 GiB that CUDA reports of an RTX 3090."""
    machine = MACHINES.get(machine_of(device.name) or device.name)
    gb = machine.size_gb if machine else None
    return f"{gb or round(device.memory / GIB)} GB"


def named(machine: Machine) -> Device | None:
    """Return a machine by its name in profiles; None for one without a fixed amount of memory."""
    if machine.memory_gb is None:
        return None
    bandwidth = link = None
    if machine.bandwidth_gb_s:
        bandwidth = machine.bandwidth_gb_s * GB
    if machine.link_gbit_s:
        link = machine.link_gbit_s * GB / 8
    return Device(
        name=machine.name,
        memory=round(machine.memory_gb * GB),
        bandwidth=bandwidth,
        capability=machine.compute_capability,
        cpu=not machine.gpus,
        gpus=machine.most_gpus,
        link=link,
    )
