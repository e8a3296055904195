"""The machines that a profile can name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
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


_ROWS: Final = json.loads(Path(__file__).with_name("machines.json").read_text(encoding="utf-8"))
MACHINES: Final = {row["name"]: Machine(**row) for row in _ROWS}
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
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
}
"""GPUs as nvidia-smi names them. Variants with another memory or bandwidth (H200 NVL, a PRO 6000 Server) are others."""


def machine_of(gpu: str) -> str | None:
    """Return the machine that has a GPU of this name; None for one that is not known by name."""
    return _BY_GPU.get(gpu)
