"""vLLM's Triton attention in Triton's interpreter, on a CPU: what probes of numbers share.

The process that runs probes has this folder on its path, and Triton; nothing of gemmaspec imports it.
The kernels, their helpers and the function that chooses among them are those of the tree that is first on the path.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import torch  # type: ignore[import-not-found]

BLOCK = 16  # tokens in a block of the cache
SEGMENTS = 4  # pieces of a cache; vLLM takes 16, which only costs time here
ROWS = 128  # of the scratch
_LARGEST_FP8 = 448.0  # E4M3
_QUERY_SCALE = 0.75  # of FP8 queries


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
    """Of queries; FP8 needs `scales="tensor"`. float16 stands for bfloat16, which Triton's interpreter gets wrong."""
    alibi: Literal["", "linear", "sqrt"] = ""
    threshold: int = 128
    causal: bool | tuple[bool, ...] = True
    """Of every request, or of each."""
    images: tuple[tuple[int, int], ...] = ()
    """A range of tokens of each request that see each other, with its last; (0, 0) for none."""
    clamped: bool = False
    """Whether an image's tokens see no further back than the window, as in Gemma 4."""
    softcap: float = 0.0
    sinks: bool = False
    lookback: int = -1
    """Blocks before its own that a token sees, where `window` is the length of all; -1 without blocks."""
    prefix: tuple[int, int] = (0, 0)
    """R-SWA: tokens at the begin that everybody sees, and the window of the others; (0, 0) without."""
    scales: Literal["", "tensor", "int8", "fp8", "int4"] = ""
    """A quantized cache: FP8 with one scale, or INT8, FP8 or INT4 with one for each token and head."""
    output_scale: float = 0.0
    """Of an FP8 output; 0 for another."""


def attention() -> Any:
    """Return the tree's module of Triton attention, its kernels interpreted; call it before anything imports vllm."""
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then takes Triton although no GPU is there (triton_utils/importing)
    real = importlib.metadata.version
    importlib.metadata.version = lambda distribution_name: (
        "0" if distribution_name == "vllm" else real(distribution_name)
    )
    # that module patches Inductor: it takes ten seconds to import, and no kernel here is compiled by it
    sys.modules.setdefault("vllm.env_override", ModuleType("vllm.env_override"))
    from quick_triton import hasten

    hasten()
    from vllm.v1.attention.ops import triton_unified_attention  # type: ignore[import-not-found]

    return triton_unified_attention


def gpu(major: int) -> SimpleNamespace:
    """Return a FAKE of vLLM's platform: a GPU of CUDA of one architecture, whose launches vLLM then chooses."""
    return SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_cuda=lambda: True,
        get_device_capability=lambda: SimpleNamespace(major=major),
        is_device_capability_family=lambda _: False,
    )


def attend(module: Any, batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Return what a batch's tokens get, without the padding; the same inputs on every tree."""
    given = _inputs(batch, seed)
    lengths, idle = _lengths(batch), batch.padding[0]
    starts = torch.tensor((0, *batch.new, *(0,) * idle)).cumsum(0).int()
    out = torch.full(given.q.shape, float("nan"))
    rows = (ROWS, batch.heads[0], SEGMENTS)
    causal = batch.causal if isinstance(batch.causal, bool) else torch.tensor((*batch.causal, *(True,) * idle)).int()
    images = torch.tensor((*batch.images, *((0, 0),) * idle)).int()[:, None] if batch.images else None
    module.unified_attention(
        q=given.q, k=given.k, v=given.v, out=out, cu_seqlens_q=starts, max_seqlen_q=max(batch.new),
        seqused_k=torch.tensor(lengths, dtype=torch.int32), max_seqlen_k=max(lengths),
        softmax_scale=batch.head**-0.5, causal=causal, window_size=_sides(batch), block_table=given.table,
        softcap=batch.softcap, q_descale=torch.tensor([_QUERY_SCALE]), k_descale=given.k_scale, v_descale=given.v_scale,
        seq_threshold_3D=batch.threshold, num_par_softmax_segments=SEGMENTS,
        softmax_segm_output=torch.full((*rows, batch.head), float("nan")),
        softmax_segm_max=torch.full(rows, float("nan")), softmax_segm_expsum=torch.full(rows, float("nan")),
        alibi_slopes=_slopes(batch), use_alibi_sqrt=batch.alibi == "sqrt", sinks=_sinks(batch),
        output_scale=torch.tensor([batch.output_scale]) if batch.output_scale else None,
        mm_prefix_range=images, mm_prefix_clamp_sliding_window=batch.clamped, chunk_lookback=batch.lookback,
        rswa_prefix_lens=torch.tensor([batch.prefix[0]] * len(lengths)).int() if batch.prefix[1] else None,
        rswa_window=batch.prefix[1] or None, **_quantized(module, batch, given),
    )  # fmt: skip
    return out[: sum(batch.new)].float()


def _sides(batch: Batch) -> tuple[int, int]:
    """Return the tokens that are seen before and after one's own; -1 for all."""
    if not batch.window:
        return -1, -1
    return batch.window - 1, 0 if batch.causal is True else batch.window - 1


def _quantized(module: Any, batch: Batch, given: _Inputs) -> dict[str, Any]:
    """Return what tells a kernel how the cache is quantized."""
    mode = "FP8_PER_TENSOR" if batch.scales == "tensor" else f"{batch.scales.upper()}_PER_TOKEN_HEAD"
    each = {"k_scale_cache": given.k_scale, "v_scale_cache": given.v_scale} if mode != "FP8_PER_TENSOR" else {}
    return {"kv_quant_mode": module.KVQuantMode[mode], **each} if batch.scales else {}


def exact(batch: Batch, *, seed: int = 0) -> torch.Tensor:
    """Return the same by the definition of attention, in float64, without tiles, pieces or a paged cache."""
    given = _inputs(batch, seed)
    groups, result, start = batch.heads[0] // batch.heads[1], [], 0
    for row, (new, cached) in enumerate(zip(batch.new, batch.cached, strict=True)):
        blocks, length = given.table[row].long(), new + cached
        keys, values = (_read(side, scale, blocks)[:length] for side, scale in given.sides())
        keys, values = (side.repeat_interleave(groups, dim=1) for side in (keys, values))
        query = given.q[start : start + new].double() * (_QUERY_SCALE if batch.dtype == torch.float8_e4m3fn else 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * batch.head**-0.5
        if batch.softcap:
            scores = batch.softcap * torch.tanh(scores / batch.softcap)
        scores = (scores + _positions(batch, new, cached)).masked_fill(~_seen(batch, row), float("-inf"))
        if (sinks := _sinks(batch)) is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, new, 1)], dim=-1)
        result.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], values))
        start += new
    output = torch.cat(result).float()
    return (output / batch.output_scale).clamp(-_LARGEST_FP8, _LARGEST_FP8) if batch.output_scale else output


def _read(side: torch.Tensor, scale: torch.Tensor | None, blocks: torch.Tensor) -> torch.Tensor:
    """Return the keys or the values of a request, by token and head."""
    if side.dtype == torch.uint8 and scale is not None:
        return _turned_back(side, scale)[blocks].flatten(0, 1)
    pages = side.double() if scale is None else side.double() * (scale[..., None] if scale.ndim > 1 else scale).double()
    return pages[blocks].flatten(0, 1)


def _turned_back(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return what INT4 keeps: two values a byte, the zero point in a scale's last 4 bits, all of a head rotated."""
    from vllm.v1.attention.ops import int4_per_token_head as int4

    bits = scale.view(torch.int32)[..., None]
    kept = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).double() - (bits & 15)
    rotated = kept * (bits & -16).view(torch.float32).double()
    return int4.single_rht(rotated, inverse=True) / rotated.shape[-1]


def _positions(batch: Batch, new: int, cached: int) -> torch.Tensor:
    """Return what ALiBi adds to a score: heads, queries, keys."""
    slopes = _slopes(batch)
    if slopes is None:
        return torch.zeros(1, 1, 1)
    keys, queries = torch.arange(new + cached)[None], torch.arange(cached, cached + new)[:, None]
    if batch.alibi == "sqrt":
        return slopes[:, None, None] * -(queries - keys).clamp(min=0).double().sqrt()
    return slopes[:, None, None] * (keys - cached)


def _seen(batch: Batch, row: int) -> torch.Tensor:
    """Return which keys each query of a request sees."""
    new, cached = batch.new[row], batch.cached[row]
    queries, keys = torch.arange(cached, cached + new)[:, None], torch.arange(new + cached)[None]
    behind = queries - keys
    causal = batch.causal if isinstance(batch.causal, bool) else batch.causal[row]
    seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    if batch.lookback >= 0:
        block = batch.window // (batch.lookback + 1)
        seen &= queries // block - keys // block <= batch.lookback
    elif batch.window:
        seen &= (behind < batch.window) & (behind > -batch.window)
    if batch.prefix[1]:
        seen &= (keys < batch.prefix[0]) | (behind < batch.prefix[1])
    first, last = batch.images[row] if batch.images else (0, 0)
    if first < last:
        inside = (queries >= first) & (queries <= last) & (keys >= first) & (keys <= last)
        seen |= inside & (behind < batch.window) if batch.clamped and batch.window else inside
    return seen


def _slopes(batch: Batch) -> torch.Tensor | None:
    return 2.0 ** -torch.arange(1.0, batch.heads[0] + 1) if batch.alibi else None


def _sinks(batch: Batch) -> torch.Tensor | None:
    """Return the sink of each head, the first of which takes nothing; None without sinks."""
    return torch.tensor((float("-inf"), *range(1, batch.heads[0]))) if batch.sinks else None


def _lengths(batch: Batch) -> list[int]:
    return [new + old for new, old in zip(batch.new, batch.cached, strict=True)] + [0] * batch.padding[0]


@dataclass(frozen=True)
class _Inputs:
    """Queries, keys and values in blocks in a random order, and the table of each request's blocks."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    def sides(self) -> tuple[tuple[torch.Tensor, torch.Tensor | None], ...]:
        """Keys and values, each with its scale."""
        return (self.k, self.k_scale), (self.v, self.v_scale)


def _inputs(batch: Batch, seed: int) -> _Inputs:
    """Return a batch's inputs, with NaN in what no token wrote."""
    random = torch.Generator().manual_seed(seed)
    lengths = _lengths(batch)
    blocks = -(-max(lengths) // BLOCK)
    q = torch.randn(sum(batch.new) + batch.padding[1], batch.heads[0], batch.head, generator=random)
    cache = torch.randn(len(lengths) * blocks, BLOCK, batch.heads[1], 2 * batch.head, generator=random)
    if batch.scores:  # one dimension of the heads carries nothing else
        q[..., 0], cache[..., 0] = 8.0, batch.scores * batch.head**0.5 / 8.0
    table = torch.randperm(len(lengths) * blocks, generator=random).reshape(len(lengths), blocks).int()
    unwritten = torch.zeros(cache.shape[:2], dtype=torch.bool)
    for row, length in enumerate(lengths):
        unwritten[table[row].long()] = (torch.arange(blocks * BLOCK) >= length).reshape(blocks, BLOCK)
    cache, scales = _stored(batch, cache, random)
    if cache.is_floating_point():
        cache = torch.where(unwritten[..., None, None], torch.tensor(float("nan")), cache.float()).to(cache.dtype)
    keys, values = cache.chunk(2, dim=-1)
    return _Inputs(q.to(batch.dtype), keys, values, table, *scales)


def _stored(
    batch: Batch, cache: torch.Tensor, random: torch.Generator
) -> tuple[torch.Tensor, tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Return a cache as it is kept, and the scales of keys and of values."""
    if not batch.scales:
        return cache.to(batch.dtype), (None, None)
    if batch.scales == "tensor":
        return cache.to(torch.float8_e4m3fn), (torch.tensor([0.5]), torch.tensor([1.5]))
    each = torch.rand(2, *cache.shape[:3], generator=random) + 0.5
    if batch.scales == "int4":  # of a byte, each half is a value
        each = each * batch.head**0.5 / 4
        return (cache[..., : batch.head] * 60 + 128).clamp(0, 255).to(torch.uint8), (each[0], each[1])
    if batch.scales == "fp8":
        return cache.to(torch.float8_e4m3fn), (each[0], each[1])
    return (cache * 30).clamp(-127, 127).to(torch.int8), (each[0] / 30, each[1] / 30)
