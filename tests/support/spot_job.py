"""The shapes that a measurement on the spot takes here, with the CPU build of vLLM and Triton's interpreter."""

from __future__ import annotations

from typing import Any, Final

LAYER: Final = {"heads": 2, "kv_heads": 1, "head": 256, "window": 16, "count": 50}
JOB: Final[dict[str, Any]] = {
    "device": "cpu", "parts": ["attention", "norms"], "layers": [LAYER], "model": [1, 256], "fp8": False, "k": 2,
    "loads": [[1, 40]], "sequences": 2, "batch": 40, "hidden": 64, "weights": 64 * 256 * 10, "matrices": [],
    "norms": 120,
}  # fmt: skip
