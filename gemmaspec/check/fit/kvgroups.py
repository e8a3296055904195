"""KV cache groups: layers that share one block table, grouped as in vLLM.

vllm/v1/core/kv_cache_utils.py (0.33: kv_cache_planning.py), get_kv_cache_groups and what it calls. What it does
for Mamba, MLA and chunked attention, and for block-outermost layouts, is left out: Gemma 4 has none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from gemmaspec.check.fit.kvspec import KvRules, LayerCache, Owned

TWO_WINDOWS = "target and draft have different sliding windows, but one group can have only one: the start fails"
TWO_BLOCKS = "sliding and full layers have different block sizes, which this release cannot put into one group"
NOT_DIVISIBLE = "the page of a layer does not divide the largest page, and this release cannot pad it"


class Unplannable(Exception):
    """vLLM cannot plan this cache, so the start fails with any amount of memory."""


@dataclass(frozen=True)
class KvGroup:
    """Layers that share one block table."""

    layers: tuple[Owned, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of every layer of the group."""
        return sum(layer.cache.page_bytes for layer in self.layers)

    def block_bytes_of(self, names: AbstractSet[str]) -> int:
        """Return bytes of one block of the layers of the group that are among the names."""
        return sum(layer.cache.page_bytes for layer in self.layers if layer.name in names)

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Return the maximum number of blocks of one request of `tokens` tokens."""
        return max(layer.cache.blocks(tokens, in_flight) for layer in self.layers)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.layers[0].cache.block_size


def groups_of(layers: Sequence[Owned], rules: KvRules, *, hybrid: bool, joins_windows: bool) -> list[KvGroup]:
    """Return all layers, sorted into groups.

    `joins_windows`: the patch kv-spec-uniform-valueerror is applied, which lets one group hold two windows.
    Raises Unplannable with the reason why vLLM fails.
    """
    if not hybrid:
        layers = _promoted(layers, rules, joins_windows)
    if not layers:
        return []
    if _uniform(layers, joins_windows) or _same_type(layers):
        return [KvGroup(tuple(layers))]
    return _split(_one_page_size(layers, rules))


def _uniform(layers: Sequence[Owned], joins_windows: bool) -> bool:
    """Return is_kv_cache_spec_uniform: one spec for all layers, except windows. Raises for two windows like vLLM."""
    if layers[0].cache.sliding:
        return all(layer.cache == layers[0].cache for layer in layers)
    if any(layer.cache.sliding for layer in layers):
        return False
    windows = {layer.cache.window for layer in layers} - {None}
    if len(windows) > 1:
        if not joins_windows:
            raise Unplannable(TWO_WINDOWS)
        return False
    return len({replace(layer.cache, window=None) for layer in layers}) == 1


def _same_type(layers: Sequence[Owned]) -> bool:
    """Return UniformTypeKVCacheSpecs.is_uniform_type: every layer needs the same number of token slots."""
    if len({layer.cache.block_size for layer in layers}) > 1:
        return False
    if layers[0].cache.sliding:
        return all(layer.cache.sliding and layer.cache.window == layers[0].cache.window for layer in layers)
    return not any(layer.cache.sliding for layer in layers)


def _promoted(layers: Sequence[Owned], rules: KvRules, joins_windows: bool) -> Sequence[Owned]:
    """Apply unify_hybrid_kv_cache_specs: without the hybrid manager, sliding layers keep every block like full ones."""
    if not layers or _uniform(layers, joins_windows) or _same_type(layers):
        return layers
    full = {layer.cache.block_size for layer in layers if not layer.cache.sliding}
    if not full:
        raise Unplannable(TWO_WINDOWS)
    if rules.promotes_block and len(full) == 1:
        block = full.pop()
    else:
        block = None
    promoted = []
    for layer in layers:
        if layer.cache.sliding:
            cache = replace(layer.cache, sliding=False, block_size=block or layer.cache.block_size)
            layer = replace(layer, cache=cache)
        promoted.append(layer)
    if not (_uniform(promoted, joins_windows) or _same_type(promoted)):
        raise Unplannable(TWO_BLOCKS)
    return promoted


def _one_page_size(layers: Sequence[Owned], rules: KvRules) -> list[Owned]:
    """Apply unify_kv_cache_spec_page_size: smaller pages get more tokens, or padding if they do not divide evenly."""
    largest = max(layer.cache.page_bytes for layer in layers)
    return [replace(layer, cache=_enlarged(layer.cache, largest, rules)) for layer in layers]


def _enlarged(cache: LayerCache, largest: int, rules: KvRules) -> LayerCache:
    if largest % cache.page_bytes == 0:
        return replace(cache, block_size=cache.block_size * (largest // cache.page_bytes))
    if not rules.pads_pages:
        raise Unplannable(NOT_DIVISIBLE)
    return replace(cache, padded_to=largest)


def _split(layers: Sequence[Owned]) -> list[KvGroup]:
    """Apply _get_kv_cache_groups_uniform_page_size: equal layers together, in groups of equal length.

    The length is that of the smallest kind, or of the largest where that is less than half as much again.
    """
    kinds: dict[LayerCache, list[Owned]] = {}
    for layer in layers:
        kinds.setdefault(layer.cache, []).append(layer)
    counts = [len(kind) for kind in kinds.values()]
    if max(counts) < min(counts) * 1.5:
        length = max(counts)
    else:
        length = min(counts)
    groups = []
    for kind in kinds.values():
        number = -(-len(kind) // length)
        groups += [KvGroup(tuple(kind[first::number])) for first in range(number)]
    return groups


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """Groups of layers that draw their blocks from one pool. Lengths are in tokens, sizes in bytes."""

    groups: tuple[KvGroup, ...]
    rules: KvRules
    in_flight: int
    """Tokens that may be in flight (VllmConfig.max_in_flight_tokens)."""
    here: frozenset[str] | None = None
    """Names of the layers of this pipeline stage; None for all. The groups are those of the whole model, of which each
    stage has its layers (_project_kv_cache_groups_to_worker, every release)."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool: those of the widest group, because all groups alias the same memory."""
        if self.here is not None:
            return max((group.block_bytes_of(self.here) for group in self.groups), default=0)
        return max((group.block_bytes for group in self.groups), default=0)

    def num_blocks(self, available: int) -> int:
        """Return `num_gpu_blocks` in vllm:cache_config_info."""
        return max(available, 0) // self.block_bytes

    def blocks_per_request(self, tokens: int) -> int:
        """Return the maximum number of blocks of one request of `tokens` tokens, over all groups."""
        return sum(group.blocks(tokens, self.in_flight) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """Return the bytes of one such request (_max_memory_usage_bytes_from_groups)."""
        return self.block_bytes * self.blocks_per_request(tokens)

    def concurrency(self, available: int, tokens: int) -> float:
        """Return vLLM's `Maximum concurrency for N tokens per request`."""
        return self.num_blocks(available) / self.blocks_per_request(tokens)

    def logged_tokens(self, available: int, tokens: int) -> int:
        """Return vLLM's `GPU KV cache size: N tokens`, with max_model_len `tokens`."""
        if self.rules.tokens_by_group:
            smallest = min(group.block_size for group in self.groups)
            return self.num_blocks(available) // len(self.groups) * smallest
        return int(self.concurrency(available, tokens) * tokens)

    def usable(self, available: int) -> int:
        """Return the blocks that vLLM allows the longest request."""
        if self.rules.spare_block:
            return available - self.block_bytes
        return available

    def starts_with(self, available: int, tokens: int) -> bool:
        """Return whether vLLM would start, which requires that one request of max_model_len fits."""
        usable = self.usable(available)
        return usable > 0 and self.request_bytes(tokens) <= usable

    def longest(self, available: int, limit: int, sequences: int = 1) -> int:
        """Return the largest max_model_len, up to `limit`, with which `sequences` requests fit; 0 if none does."""
        usable = self.usable(available)

        def fits(tokens: int) -> bool:
            return self.request_bytes(tokens) * sequences <= usable

        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle):
                low, high = (middle, high)
            else:
                low, high = (low, middle - 1)
        return low

    def sequences(self, available: int, tokens: int) -> int:
        """Return how many requests of `tokens` tokens fit."""
        return max(self.usable(available), 0) // self.request_bytes(tokens)
