"""The machines a profile can name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One kind of machine, as far as a start depends on it."""

    name: str
    summary: str
    gpus: bool
    memory_gb: float | None = None
    """Memory the accelerator can use, in 10^9 bytes; None: this machine's own."""
    bandwidth_gb_s: float | None = None
    """Memory bandwidth in 10^9 bytes per second."""
    compute_capability: str | None = None


MACHINES: Final = {
    machine.name: machine
    for machine in (
        Machine(
            name="dgx-spark",
            summary="NVIDIA DGX Spark (GB10): unified memory shared with the CPU",
            gpus=True,
            memory_gb=128,
            bandwidth_gb_s=273,
            compute_capability="12.1",
        ),
        Machine(
            name="h200",
            summary="one NVIDIA H200",
            gpus=True,
            memory_gb=141,
            bandwidth_gb_s=4800,
            compute_capability="9.0",
        ),
        Machine(name="nvidia", summary="any machine with NVIDIA GPUs", gpus=True),
        Machine(name="cpu", summary="no accelerator; for trying things out", gpus=False),
    )
}
