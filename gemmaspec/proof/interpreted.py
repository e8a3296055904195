"""vLLM's Triton attention in Triton's interpreter, on a CPU: what probes of numbers share.

The process that runs probes imports this file by its name, with Triton on its path; nothing of gemmaspec imports it.
The kernels, their helpers and the function that chooses among them are those of the tree that is first on the path.
"""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found]

BLOCK = 16  # tokens in a block of the cache
SEGMENTS = 4  # pieces of a cache; vLLM takes 16, which only costs time here
ROWS = 128  # of the scratch


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Requests with their new tokens and those in the cache; `padding` is what a CUDA graph adds behind them."""

    new: tuple[int, ...]
    cached: tuple[int, ...]
    head: int = 256
    heads: tuple[int, int] = (4, 2)
    """Query heads and KV heads."""
    window: int = 0
    """Tokens that a sliding layer sees; 0 for a full layer."""
    padding: tuple[int, int] = (0, 0)
    """Requests of length 0, and rows of no request."""
    scores: float = 0.0
    """What is added to every score before the softmax; the result does not depend on it."""
    dtype: torch.dtype = torch.float32
    """float16 stands for bfloat16, which the interpreter of Triton 3.7 gets wrong."""
    alibi: bool = False
    threshold: int = 128


def attention() -> Any:
    """Return the tree's module of Triton attention, its kernels interpreted; call it before anything imports vllm."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then takes Triton although no GPU is there (triton_utils/importing)
    found = importlib.metadata.version
    importlib.metadata.version = lambda distribution_name: (
        "0" if distribution_name == "vllm" else found(distribution_name)
    )
    from vllm.v1.attention.ops import triton_unified_attention  # type: ignore[import-not-found]

    return triton_unified_attention


def attend(module: Any, batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Return what a batch's tokens get, without the padding; the same inputs on every tree."""
    q, k, v, table = _inputs(batch, seed)
    lengths = _lengths(batch)
    starts = torch.tensor((0, *batch.new, *(0,) * batch.padding[0])).cumsum(0).int()
    out = torch.full(q.shape, float("nan"))
    rows = (ROWS, batch.heads[0], SEGMENTS)
    module.unified_attention(
        q=q, k=k, v=v, out=out, cu_seqlens_q=starts, max_seqlen_q=max(batch.new),
        seqused_k=torch.tensor(lengths, dtype=torch.int32), max_seqlen_k=max(lengths),
        softmax_scale=batch.head**-0.5, causal=True, window_size=(batch.window - 1, 0 if batch.window else -1),
        block_table=table, softcap=0, q_descale=None, k_descale=None, v_descale=None,
        seq_threshold_3D=batch.threshold, num_par_softmax_segments=SEGMENTS,
        softmax_segm_output=torch.full((*rows, batch.head), float("nan")),
        softmax_segm_max=torch.full(rows, float("nan")), softmax_segm_expsum=torch.full(rows, float("nan")),
        alibi_slopes=_slopes(batch),
    )  # fmt: skip
    return out[: sum(batch.new)].float()


def exact(batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Return the same by the definition of attention, in float64, without tiles, pieces or a paged cache."""
    q, k, v, table = _inputs(batch, seed)
    groups, result, start = batch.heads[0] // batch.heads[1], [], 0
    for row, (new, cached) in enumerate(zip(batch.new, batch.cached, strict=True)):
        keys, values = (side[table[row].long()].flatten(0, 1)[: new + cached].double() for side in (k, v))
        keys, values = (side.repeat_interleave(groups, dim=1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[start : start + new].double(), keys) * batch.head**-0.5
        if (slopes := _slopes(batch)) is not None:
            scores += slopes[:, None, None] * torch.arange(new + cached)
        behind = torch.arange(cached, cached + new)[:, None] - torch.arange(new + cached)[None]
        hidden = (behind < 0) | ((behind >= batch.window) if batch.window else False)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        result.append(torch.einsum("hqk,khd->qhd", weights, values))
        start += new
    return torch.cat(result).float()


def _slopes(batch: Batch) -> torch.Tensor | None:
    return 2.0 ** -torch.arange(1.0, batch.heads[0] + 1) if batch.alibi else None


def _lengths(batch: Batch) -> list[int]:
    return [new + old for new, old in zip(batch.new, batch.cached, strict=True)] + [0] * batch.padding[0]


def _inputs(batch: Batch, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values in blocks in a random order, and the table of each request's blocks."""
    random = torch.Generator().manual_seed(seed)
    lengths = _lengths(batch)
    blocks = -(-max(lengths) // BLOCK)
    q = torch.randn(sum(batch.new) + batch.padding[1], batch.heads[0], batch.head, generator=random)
    cache = torch.randn(len(lengths) * blocks, BLOCK, batch.heads[1], 2 * batch.head, generator=random)
    if batch.scores:  # one dimension of the heads carries nothing else
        q[..., 0], cache[..., 0] = 8.0, batch.scores * batch.head**0.5 / 8.0
    table = torch.randperm(len(lengths) * blocks, generator=random).reshape(len(lengths), blocks).int()
    cache = cache.to(batch.dtype)
    return q.to(batch.dtype), cache[..., : batch.head], cache[..., batch.head :], table
