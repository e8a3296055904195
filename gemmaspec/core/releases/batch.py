"""How many tokens a batch has, and how many requests run at once, by default: this depends on the machine.

Source: EngineArgs.get_batch_defaults in vllm/engine/arg_utils.py, for `vllm serve`, every release. The tests compare
these rules with vLLM's own answers for six machines in data/defaults.json (tools/oracle.py)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gemmaspec.core import launcher

_GIB: Final = 2**30
_LARGE: Final = 70 * _GIB
_LARGEST: Final = 160 * _GIB
_GB10: Final = "12.1"
_DATA: Final = Path(__file__).parent / "data" / "defaults.json"


@dataclass(frozen=True, kw_only=True)
class BatchDefaults:
    """max_num_batched_tokens and max_num_seqs, before a model's longest context or largest image change them."""

    tokens: int
    sequences: int


def batch_defaults(
    vllm: str, *, memory: int, name: str = "", capability: str | None = None, cpu: bool = False, world: int = 1
) -> BatchDefaults:
    """Return the defaults of one release on one machine.

    `memory` is that of one GPU, in bytes; `name` is the driver's name for it; `world` the processes of a CPU server.
    A GB10 never counts as a large GPU: up to 0.32.0 NVML does not report its memory and vLLM assumes 0; 0.33.0 reads
    the memory elsewhere but excludes the GB10 by its compute capability. An A100 is excluded by its name.
    """
    if cpu:
        return BatchDefaults(tokens=2048 * world, sequences=128 * world)
    if capability == _GB10:
        return BatchDefaults(tokens=2048, sequences=256)
    if memory >= _LARGEST and launcher.range_contains(">=0.28.0", vllm):
        return BatchDefaults(tokens=16384, sequences=1024)
    if memory >= _LARGE and "a100" not in name.lower():
        return BatchDefaults(tokens=8192, sequences=1024)
    return BatchDefaults(tokens=2048, sequences=256)


def default_batch(
    tokens: int, *, vllm: str, length: int | None, sequences: int | None, masks: bool, chunked: bool = True
) -> int | None:
    """Return max_num_batched_tokens where nobody sets it; None if it hangs on a length that is not known.

    `tokens` is the machine's default, `masks` whether the target's images are masked: from 0.22 on their largest one
    fits (_set_default_max_num_seqs_and_batched_tokens_args in vllm/engine/arg_utils.py, every release). Without
    chunked prefill the longest prompt fits.
    """
    if not chunked and length is None:
        return None
    batch = tokens if chunked or length is None else max(tokens, length)
    if masks and launcher.range_contains(">=0.22.0", vllm):
        batch = max(batch, ITEMS[0].tokens)
    return min(batch, sequences * length) if sequences and length else batch


@functools.cache
def asked() -> dict[str, dict[str, dict[str, int | None]]]:
    """Return vLLM's own answers: machine → release → max_num_batched_tokens and max_num_seqs for a 31B and an E2B."""
    rows: dict[str, dict[str, dict[str, int | None]]] = json.loads(_DATA.read_text(encoding="utf-8"))
    return rows


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
