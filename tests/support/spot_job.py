"""The shapes that a measurement on the spot takes here, and the vLLM that it runs: the CPU build, with an interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.support import real

LAYER: Final = {"heads": 2, "kv_heads": 1, "head": 256, "window": 16, "count": 50}
JOB: Final[dict[str, Any]] = {
    "device": "cpu", "parts": ["attention", "norms"], "layers": [LAYER], "model": [1, 256], "fp8": False, "k": 2,
    "loads": [[1, 40]], "sequences": 2, "batch": 40, "hidden": 64, "weights": 64 * 256 * 10, "matrices": [],
    "norms": 120,
}  # fmt: skip


def site_packages() -> Path:
    """Return the folder of vLLM's CPU build."""
    (site,) = (real.SHARED / "runtimes").glob("cpu-0.32.0-*/lib/python*/site-packages")
    return site


def python() -> Path:
    """Return its interpreter."""
    return site_packages().parent.parent.parent / "bin" / "python"
