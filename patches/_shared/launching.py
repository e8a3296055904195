"""Which of Triton's attention kernels a tree launches: what probes of paths share.

The process that runs probes has this folder on its path. The builder of metadata and the function that launches are
those of the tree; the kernels are replaced by one that records how it was launched.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch  # type: ignore[import-not-found]

HEADS = 32  # of queries, as in Gemma 4 31B
FULL, SLIDING = (4, 512), (16, 256)  # KV heads and their size
_SCRATCH = (
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
)


def builder(
    group: tuple[int, int] = FULL,
    *,
    model: tuple[int, int] = FULL,
    k: int = 4,
    requests: int = 8,
    parallel: bool = False,
    graphs: list[int] | None = None,
    **spec: Any,
) -> Any:
    """Return the builder of a group of layers. `model` has the numbers that the model states; with `k` 0 it does not
    speculate.
    """
    from vllm.config import CUDAGraphMode  # type: ignore[import-not-found]
    from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import FullAttentionSpec  # type: ignore[import-not-found]

    draft = SimpleNamespace(num_speculative_tokens=k, parallel_drafting=parallel)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _: HEADS,
            get_num_kv_heads=lambda _: model[0],
            get_head_size=lambda: model[1],
            rswa_window=None,
        ),
        parallel_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
        speculative_config=draft if k else None,
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY if graphs else CUDAGraphMode.NONE,
            cudagraph_capture_sizes=graphs,
            static_forward_context={},
        ),
    )
    cache = FullAttentionSpec(block_size=16, num_kv_heads=group[0], head_size=group[1], dtype=torch.bfloat16, **spec)
    return TritonAttentionMetadataBuilder(cache, [], config, torch.device("meta"))


def split(builder: Any, new: int, requests: int = 1, **more: Any) -> bool:
    """Return whether requests with `new` tokens each have their cache split, given this builder's buffers."""
    return bool(launch(builder, new, requests, **more)["IS_3D"])


def launch(
    builder: Any,
    new: int,
    requests: int = 1,
    *,
    tokens: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    **more: Any,
) -> dict[str, Any]:
    """Return the parameters with which the kernel is launched for requests with `new` tokens each."""
    from vllm.v1.attention.ops import triton_unified_attention as module  # type: ignore[import-not-found]

    launched: list[dict[str, Any]] = []
    module.kernel_unified_attention = module.reduce_segments = _Recorder(launched)
    module.triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()  # vLLM's stand-in for Triton lacks it
    heads, size = builder.kv_cache_spec.num_kv_heads, builder.kv_cache_spec.head_size
    q = torch.empty(tokens or new * requests, HEADS, size, dtype=dtype, device="meta")
    cache = torch.empty(1, 16, heads, size, dtype=torch.bfloat16, device="meta")
    scratch = {name: getattr(builder, name) for name in _SCRATCH}
    options = {"causal": True, "window_size": (-1, -1), **scratch, **more}
    module.unified_attention(
        q=q, k=cache, v=cache, out=q, cu_seqlens_q=torch.empty(requests + 1, device="meta"), max_seqlen_q=new,
        seqused_k=torch.empty(requests, device="meta"), max_seqlen_k=8192, softmax_scale=1.0,
        block_table=torch.empty(requests, 512, device="meta"), softcap=0, q_descale=None, k_descale=None,
        v_descale=None, **options,
    )  # fmt: skip
    first = launched[0]
    assert first["IS_3D"] == (len(launched) == 2), "pieces are added up if and only if there are some"
    return first


class _Recorder:
    """A FAKE kernel."""

    def __init__(self, launched: list[dict[str, Any]]) -> None:
        self.launched = launched

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda **options: self.launched.append({**options, "grid": grid})
