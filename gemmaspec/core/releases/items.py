"""How many tokens an image, a video or a sound takes, and which release wants each whole in one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.core import launcher

Modality = Literal["image", "video", "audio"]
_POOLED: Final = 9
"""Patches that become one token: pooling_kernel_size squared."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """The largest input of its kind, as vLLM plans for it."""

    modality: Modality
    tokens: int
    frames: int
    patches: int
    """Tokens of one frame."""


ITEMS: Final = (
    Item(modality="video", tokens=32 * (70 + 2 + 6), frames=32, patches=70 * _POOLED),
    Item(modality="image", tokens=280, frames=1, patches=280 * _POOLED),
)
"""Larger ones first. A video frame has 70 tokens plus its time and two markers."""


def largest_item(limits: Mapping[Modality, int]) -> Item | None:
    """Return the largest item that limit_mm_per_prompt allows in a request; None if it allows none."""
    return next((item for item in ITEMS if limits.get(item.modality, 1)), None)


def wants_whole_items(vllm: str, *, cpu: bool) -> bool:
    """Return whether vLLM keeps images whole for a model with bidirectional image attention, as 31B and 26B-A4B.

    vLLM recognises such models from 0.20.0 on (Gemma4ModelArchConfigConvertor.is_mm_prefix_lm in
    vllm/transformers_utils/model_arch_config_convertor.py). vllm/platforms/cuda.py then sets disable_chunked_mm_input,
    as no other platform does, and compute_mm_encoder_budget in vllm/v1/core/encoder_cache_manager.py rejects a batch
    smaller than one item.
    """
    return not cpu and launcher.range_contains(">=0.20.0", vllm)
