"""Which attention backend runs: as the layers of Gemma 4 choose it, by release and GPU.

data/backends.json was made by building the layers of a 31B and its assistant on torch's meta device against each
release's own selector, with FlashAttention and FlashInfer installed (tools/oracle_backends.py).
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final

from gemmaspec.releases import spans
from gemmaspec.releases.facts import releases

_DATA: Final = Path(__file__).parent / "data" / "backends.json"


def backend_for(vllm: str, capability: str | None, *, masks: bool, fp8: bool, role: str = "target") -> str | None:
    """Return the backend that vLLM chooses where the profile sets none; None for a release or GPU that was not asked.

    `masks`: images are on, and their tokens see later ones, as in 31B, 26B-A4B and 12B. `fp8`: the KV cache's format.
    `role` draft: the head of MTP; eagle3: that of EAGLE. A composite such as TRITON_FLASH_ATTN runs the second for
    causal batches and Triton where an image needs a mask.
    """
    forms = _table().get(capability or "", {}).get("masks" if masks else "causal", {})
    choices = forms.get("fp8" if fp8 else "auto", {}).get(role, {})
    return spans.at(choices, vllm, releases())


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return found
