"""The machine that a server would run on, as far as memory and speed go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmaspec.profile.machines import Machine

GB: Final = 10**9
GIB: Final = 2**30
_INTEGRATED: Final = frozenset({"8.7", "11.0", "12.1"})
"""Compute capabilities whose GPU shares the CPU's memory (vllm/utils/mem_utils.py, 0.19.0: Orin, Thor, GB10)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Memory in bytes, bandwidth in bytes per second."""

    name: str
    memory: int
    """What the accelerator, or the machine that has none, can use in all."""
    free: int | None = None
    """What of it nobody uses now; None for a machine that is not this one."""
    bandwidth: float | None = None
    capability: str | None = None
    """CUDA compute capability, such as 12.1."""
    cpu: bool = False
    here: bool = False
    """Whether its numbers were read on this machine."""
    gpus: int | None = None
    """GPUs that one such machine has at most, each with that memory and bandwidth; None: not known."""

    @property
    def unified(self) -> bool:
        """Whether CPU and GPU share the memory: vLLM then takes MemAvailable for free memory."""
        return self.capability in _INTEGRATED

    @property
    def major(self) -> int:
        """The first number of the compute capability; 0 when it is not known."""
        return int(self.capability.split(".")[0]) if self.capability else 0


def named(machine: Machine) -> Device | None:
    """A machine as its profile's name describes it; None for one that has no memory of its own there."""
    if machine.memory_gb is None:
        return None
    return Device(
        name=machine.name,
        memory=round(machine.memory_gb * GB),
        bandwidth=machine.bandwidth_gb_s * GB if machine.bandwidth_gb_s else None,
        capability=machine.compute_capability,
        cpu=not machine.gpus,
        gpus=machine.most_gpus,
    )
