"""The attention backend that vLLM chooses for a Gemma 4 if nobody names one."""

from __future__ import annotations

from gemmaspec.releases.gemma4 import attention_for, within

_COMPOSITE: str = ">=0.31"


def default_backend(vllm: str, capability: str, *, images: bool | None, fp8: bool | None) -> str | None:
    """Return the target's backend on a GPU of that compute capability; None where it is not known.

    `images`: whether image tokens attend both ways, which only Triton's kernels mask; `fp8`: whether the KV cache is
    FP8; None for unknown. Sources: Gemma4Config in vllm/model_executor/models/config.py, _get_backend_priorities in
    vllm/platforms/cuda.py and composite.py in vllm/v1/attention/backends, 0.24.0 to 0.33.0.
    """
    major = int(capability.partition(".")[0])
    if major not in attention_for(vllm).flash_attention_on:
        return "TRITON_ATTN"
    if major != 9:
        return "TRITON_ATTN" if images and within(vllm, ">=0.32,<0.33") else None
    if within(vllm, _COMPOSITE):
        return None if images is None else "TRITON_FLASH_ATTN" if images else "FLASH_ATTN"
    if images or fp8:
        return "TRITON_ATTN"
    return None if images is None or fp8 is None else "FLASH_ATTN"
