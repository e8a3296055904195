"""The cache of one attention layer, as in vLLM's KVCacheSpec: the content of a block, and the number of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from packaging.version import Version

from gemmaspec.core.checkpoint.model import LayerKind, TextModel

_PER_TOKEN_HEAD_SCALE: Final = 4
"""Bytes of one float32 scale, for keys and again for values."""
_NUMBER_BYTES: Final = {"auto": 2, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}


def _dense(number: int) -> Callable[[int], int]:
    return lambda head_dim: number * head_dim


_ROW_BYTES: Final[dict[str, Callable[[int], int]]] = {
    **{name: _dense(number) for name, number in _NUMBER_BYTES.items()},
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"), _dense(1)),
    **dict.fromkeys(("int8_per_token_head", "fp8_per_token_head"), lambda head_dim: head_dim + _PER_TOKEN_HEAD_SCALE),
    "int4_per_token_head": lambda head_dim: head_dim // 2 + _PER_TOKEN_HEAD_SCALE,
    "nvfp4": lambda head_dim: head_dim // 2 + head_dim // 16,
}
"""kv_cache_dtype → bytes of the keys (or the values) of one token and one head, for dense bfloat16 models.
vllm/v1/kv_cache_interface.py: AttentionSpec.page_size_bytes and real_page_size_bytes; with 0.28 and newer
state_content_size_bytes and the backends' customize_spec."""


def known_cache_dtypes() -> frozenset[str]:
    """Return the kv_cache_dtype values whose size is known here."""
    return frozenset(_ROW_BYTES)


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """KVCacheSpec of one layer: FullAttentionSpec, or SlidingWindowSpec if it is sliding."""

    sliding: bool
    """Whether blocks below the window are freed; False for every layer if the hybrid manager is off."""
    window: int | None
    """Tokens that the layer sees, even if it is kept as a full one."""
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: str
    """kv_cache_dtype."""
    padded_to: int | None = None
    """Bytes that a page is padded to, to be as large as the other layers'."""

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token. K=V checkpoints store one projection, but the cache holds both."""
        return 2 * self.kv_heads * _ROW_BYTES[self.dtype](self.head_dim)

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer."""
        return self.padded_to or self.block_size * self.token_bytes

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Return the maximum blocks of one request of `tokens` tokens (max_memory_usage_bytes / page_size_bytes).

        A sliding layer holds its window, the tokens being computed, and one more block, because the window need not
        begin at a block.
        """
        if not self.sliding or self.window is None:
            return -(-tokens // self.block_size)
        held = min(self.window - 1 + in_flight, tokens)
        return -(-held // self.block_size) + 1


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A layer with its own cache, and its name."""

    name: str
    kind: LayerKind
    cache: LayerCache


def layer_caches(
    model: TextModel, *, role: str, rules: KvRules, block_size: int, dtype: str, tensor_parallel: int = 1
) -> Iterator[Owned]:
    """Return the caches of one model's layers, in order; a layer that reads another's has none.

    vllm/model_executor/layers/attention/attention.py, Attention.get_kv_cache_spec.
    """
    for index, layer in enumerate(model.layers):
        if layer.shares_with is not None or layer.shares_target:
            continue
        sliding = layer.kind == "sliding"
        cache = LayerCache(
            sliding=sliding,
            window=layer.window if sliding else None,
            block_size=sliding_block(rules, block_size) if sliding else block_size,
            kv_heads=max(1, layer.kv_heads // tensor_parallel),
            head_dim=layer.head_dim,
            dtype=dtype,
        )
        yield Owned(name=f"{role}.{index}", kind=layer.kind, cache=cache)


def sliding_block(rules: KvRules, block_size: int) -> int:
    """Return the block size of a sliding layer, before pages are unified."""
    if rules.sliding_block == "cache":
        return block_size
    if rules.sliding_block == "smallest":
        return rules.kernel_block
    return max(rules.kernel_block, block_size // rules.kernel_block * rules.kernel_block)


SlidingBlock = Literal["cache", "smallest", "largest"]
"""Block size of a sliding layer before pages are unified: that of the cache, the smallest that the attention kernel
takes, or the largest it takes within the cache's."""


@dataclass(frozen=True, kw_only=True)
class KvRules:
    """How one release plans its KV cache."""

    default_block: int
    """Default tokens per block: vllm/config/cache.py and, for a CPU, vllm/platforms/cpu.py."""
    kernel_block: int
    """Unit of the attention kernel's block sizes (get_supported_kernel_block_sizes)."""
    sliding_block: SlidingBlock
    promotes_block: bool
    """Hybrid manager off: sliding layers take the full layers' block size as they become full ones. Without it two
    block sizes can remain, and the start fails."""
    pads_pages: bool
    """A page that does not divide the largest one is padded to it; without it the start fails."""
    batches_in_flight: bool
    """A sliding layer keeps blocks for every batch that may be in flight: two with asynchronous scheduling."""
    spare_block: bool
    """Whether the pool's spare block is subtracted when the longest request is checked."""
    tokens_by_group: bool
    """The logged size counts blocks per group, not requests of max_model_len."""


def kv_rules(vllm: str, *, cpu: bool = False) -> KvRules:
    """Return the rules of a release; for one after the newest known release, those of the newest."""
    release = Version(vllm)

    def since(first: str) -> bool:
        return release >= Version(first)

    sliding_block: Literal["largest", "smallest", "cache"] = "cache"
    if since("0.30.0"):
        sliding_block = "largest"
    elif since("0.25.0"):
        sliding_block = "smallest"
    return KvRules(
        default_block=128 if cpu else 16,
        kernel_block=32 if cpu and since("0.29.0") else 16,
        sliding_block=sliding_block,
        promotes_block=since("0.27.0"),
        pads_pages=since("0.29.0") if cpu else since("0.24.0"),
        batches_in_flight=since("0.26.0"),
        spare_block=since("0.29.0"),
        tokens_by_group=not since("0.20.1"),
    )
