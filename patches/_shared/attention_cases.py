"""Calls of Triton's attention at the shapes of a server: what the cases of several patches share.

The function that launches, its kernels and the builder that decides whether a cache is split are those of the tree that
is first on the path. Without a GPU they run in Triton's interpreter, with float32.

A job has `device` ("cuda", or "cpu" for the interpreter), `layers` (heads, kv_heads, head, window and count of each
kind), `model` (KV heads and head size that the model states), `fp8`, `k`, `loads` (requests at once, and tokens of
each), the most requests of the server (`sequences`), tokens of a prompt that are computed at once (`batch`), and the
`parts` of the server for which there are cases.
"""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BLOCK = 16  # tokens in a block of the cache
POOL = 512 * 2**20  # bytes of blocks at most; more requests share them, which no L2 cache notices
PLACES = 20  # in the pool, read in turn by launches: a server's next layer finds its cache in no L2
MOST_SPLIT = 16  # new tokens of a request, in any release
SCRATCH = (
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
)


def bounds(numbers: Path) -> dict[Any, float]:
    """Return the bounds of a patch's numbers.py by type: shares of the largest value."""
    found = runpy.run_path(str(numbers))
    return {**found["BOUND"], **found["ON_A_GPU"]}


def verifying(job: dict[str, Any], within: dict[Any, float], *, least: int = 1) -> list[dict[str, Any]]:
    """Return a step's verification in each kind of layer, for `least` requests and more."""
    if not job["k"] or "attention" not in job["parts"]:
        return []
    loads = [(requests, context) for requests, context in job["loads"] if requests >= least]
    return list(_cases(job, within, loads, part="step", new=job["k"] + 1))


def prompts(job: dict[str, Any], within: dict[Any, float]) -> list[dict[str, Any]]:
    """Return the last tokens of a prompt in each kind of layer."""
    if "attention" not in job["parts"]:
        return []
    loads = [(1, context) for requests, context in job["loads"] if requests == 1]
    return list(_cases(job, within, loads, part="prompt", new=job["batch"]))


def _cases(
    job: dict[str, Any], within: dict[Any, float], loads: Sequence[tuple[int, int]], *, part: str, new: int
) -> Iterator[dict[str, Any]]:
    import torch  # type: ignore[import-not-found,unused-ignore]

    dtype = torch.float8_e4m3fn if job["fp8"] else torch.bfloat16 if job["device"] == "cuda" else torch.float32
    what = {"step": "verified", "prompt": "of a prompt"}[part]
    for layer in job["layers"]:
        kind = "full layers"
        if layer["window"]:
            kind = f"layers with a window of {layer['window']:,}"
        for requests, context in loads:
            tokens = min(new, context)
            yield {
                "name": f"{kind}, {tokens} tokens {what}, {requests} x {context:,}",
                "part": part,
                "load": [requests, context],
                "times": layer["count"],
                "bound": within[dtype],
                "make": _maker(job, layer, requests, context, tokens, dtype),
            }


def _maker(job: dict[str, Any], layer: dict[str, int], *load: Any) -> Callable[[], Callable[[], Any]]:
    return lambda: _call(job, layer, *load)


def _call(job: dict[str, Any], layer: dict[str, int], requests: int, context: int, new: int, dtype: Any) -> Any:
    """Return a call of one layer, which returns what its tokens get; the same inputs on every tree."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    module, device = tree(job), job["device"]
    heads, kv_heads, head, window = (layer[name] for name in ("heads", "kv_heads", "head", "window"))
    random = torch.Generator(device=device).manual_seed(0)

    def values(*shape: int) -> Any:
        return torch.randn(*shape, generator=random, device=device).to(dtype)

    blocks = -(-context // BLOCK)
    read = requests * (-(-(min(context, window + new) if window else context) // BLOCK) + 1)
    wanted = max(requests * blocks, PLACES * read)
    pool = min(wanted, POOL // (BLOCK * kv_heads * 2 * head * dtype.itemsize))
    q = values(requests * new, heads, head)
    k, v = values(pool, BLOCK, kv_heads, 2 * head).split(head, dim=-1)
    out = torch.empty(q.shape, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    whole = {"dtype": torch.int32, "device": device}
    starts = torch.arange(requests + 1, **whole) * new
    lengths = torch.full((requests,), context, **whole)
    table = torch.arange(requests * blocks, **whole).reshape(requests, blocks)
    tables = itertools.cycle([(table + place * read) % pool for place in range(PLACES)])
    scale = torch.ones(1, kv_heads, device=device) if job["fp8"] else None
    more = {"kv_quant_mode": module.KVQuantMode.FP8_PER_TENSOR} if job["fp8"] else {}
    # a prompt is never split, and what decides it imports most of vLLM
    scratch = scratch_of(job, layer) if new <= MOST_SPLIT else {}

    def run() -> Any:
        module.unified_attention(
            q=q, k=k, v=v, out=out, cu_seqlens_q=starts, max_seqlen_q=new, seqused_k=lengths, max_seqlen_k=context,
            softmax_scale=head**-0.5, causal=True, window_size=(window - 1, 0) if window else (-1, -1), softcap=0,
            q_descale=scale, k_descale=scale, v_descale=scale, block_table=next(tables), **scratch, **more,
        )  # fmt: skip
        return out

    return run


def tree(job: dict[str, Any]) -> Any:
    """Return the tree's module of Triton attention; interpreted without a GPU."""
    if job["device"] == "cpu":
        import interpreted

        return interpreted.attention()
    from vllm.v1.attention.ops import triton_unified_attention  # type: ignore[import-not-found]

    return triton_unified_attention


def scratch_of(job: dict[str, Any], layer: dict[str, int]) -> dict[str, Any]:
    """Return how many requests the tree splits, and the scratch for it, as its builder of metadata decides."""
    import torch  # type: ignore[import-not-found,unused-ignore]
    from vllm.config import CUDAGraphMode  # type: ignore[import-not-found]
    from vllm.v1.attention.backends.triton_attn import TritonAttentionMetadataBuilder  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import FullAttentionSpec  # type: ignore[import-not-found]

    kv_heads, head = job["model"]
    draft = SimpleNamespace(num_speculative_tokens=job["k"], parallel_drafting=False)
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _: layer["heads"],
            get_num_kv_heads=lambda _: kv_heads,
            get_head_size=lambda: head,
            rswa_window=None,
        ),
        parallel_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=job["sequences"]),
        speculative_config=draft if job["k"] else None,
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.NONE, cudagraph_capture_sizes=None, static_forward_context={}
        ),
    )
    spec = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=layer["kv_heads"], head_size=layer["head"], dtype=torch.bfloat16
    )
    builder = TritonAttentionMetadataBuilder(spec, [], config, torch.device(job["device"]))
    return {name: getattr(builder, name) for name in SCRATCH}
