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
        Machine(
            name="h100",
            summary="one NVIDIA H100 (SXM, 80 GB)",
            gpus=True,
            memory_gb=85.5,
            bandwidth_gb_s=3350,
            compute_capability="9.0",
        ),
        Machine(
            name="rtx-5090",
            summary="one NVIDIA GeForce RTX 5090 (32 GB)",
            gpus=True,
            memory_gb=34.2,
            bandwidth_gb_s=1792,
            compute_capability="12.0",
        ),
        Machine(
            name="rtx-pro-6000",
            summary="one NVIDIA RTX PRO 6000 Blackwell (96 GB)",
            gpus=True,
            memory_gb=102.6,
            bandwidth_gb_s=1792,
            compute_capability="12.0",
        ),
        Machine(name="nvidia", summary="any machine with NVIDIA GPUs", gpus=True),
        Machine(name="cpu", summary="no accelerator; for trying things out", gpus=False),
    )
}
