"""The machines that a profile can name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One kind of machine: the properties that a start depends on."""

    name: str
    summary: str
    gpus: bool
    memory_gb: float | None = None
    """Usable memory of one GPU in 10^9 bytes, as CUDA reports it; None means that of this machine."""
    bandwidth_gb_s: float | None = None
    """Memory bandwidth in 10^9 bytes per second."""
    compute_capability: str | None = None
    most_gpus: int | None = None
    """Maximum number of GPUs in one such machine; None if unknown."""
    link_gbit_s: float | None = None
    """Network to another such machine in 10^9 bits per second, as the vendor names it; None if machines differ."""


MACHINES: Final = {
    machine.name: machine
    for machine in (
        Machine(
            name="dgx-spark",
            summary="NVIDIA DGX Spark (GB10): unified memory shared with the CPU",
            gpus=True,
            memory_gb=130.663,
            bandwidth_gb_s=273,
            compute_capability="12.1",
            most_gpus=1,
            link_gbit_s=200,
        ),
        Machine(
            name="h100",
            summary="NVIDIA H100, 80 GB, up to eight in a machine",
            gpus=True,
            memory_gb=85.017,
            bandwidth_gb_s=3350,
            compute_capability="9.0",
            most_gpus=8,
        ),
        Machine(
            name="h200",
            summary="NVIDIA H200, up to eight in a machine",
            gpus=True,
            memory_gb=150.11,
            bandwidth_gb_s=4800,
            compute_capability="9.0",
            most_gpus=8,
        ),
        Machine(
            name="b200",
            summary="NVIDIA B200, up to eight in a machine",
            gpus=True,
            memory_gb=191.5,
            bandwidth_gb_s=8000,
            compute_capability="10.0",
            most_gpus=8,
        ),
        Machine(
            name="a100",
            summary="NVIDIA A100, 80 GB, up to eight in a machine",
            gpus=True,
            memory_gb=84.98,
            bandwidth_gb_s=2039,
            compute_capability="8.0",
            most_gpus=8,
        ),
        Machine(
            name="rtx-5090",
            summary="one NVIDIA GeForce RTX 5090 (32 GB)",
            gpus=True,
            memory_gb=34.2,
            bandwidth_gb_s=1792,
            compute_capability="12.0",
            most_gpus=1,
        ),
        Machine(
            name="rtx-pro-6000",
            summary="one NVIDIA RTX PRO 6000 Blackwell (96 GB)",
            gpus=True,
            memory_gb=102.6,
            bandwidth_gb_s=1792,
            compute_capability="12.0",
            most_gpus=1,
        ),
        Machine(name="nvidia", summary="any machine with NVIDIA GPUs", gpus=True),
        Machine(name="cpu", summary="no accelerator; for a first try", gpus=False),
    )
}
"""Sources of memory: torch on such machines for H100 and H200; owners' logs for a Spark (121.69 GiB, or 119.68 with
older firmware); published logs for A100 and B200, not measured. Bandwidth and link: NVIDIA's data sheets."""

HERE: Final = "here"
"""What a command calls the machine that it runs on."""
ANY_GPU: Final = "nvidia"
"""The machine of a profile for any NVIDIA GPU."""
_BY_GPU: Final = {
    "NVIDIA GB10": "dgx-spark",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
}
"""GPUs as nvidia-smi names them. Variants with another memory or bandwidth (H100 PCIe, H200 NVL) are other machines."""


def machine_of(gpu: str) -> str | None:
    """Return the machine that has a GPU of this name; None for one that is not known by name."""
    return _BY_GPU.get(gpu)
