"""The KV cache as a whole: blocks, tokens, requests, as the server logs them."""

from __future__ import annotations

from dataclasses import dataclass

from gemmaspec.fit.kvgroups import Group
from gemmaspec.fit.releases import KvRules


@dataclass(frozen=True, kw_only=True)
class KvCache:
    """Groups of layers that draw their blocks from one pool. Lengths are in tokens, sizes in bytes."""

    groups: tuple[Group, ...]
    rules: KvRules
    in_flight: int
    """Tokens that may be in flight (VllmConfig.max_in_flight_tokens)."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool: those of the widest group, because all groups alias the same memory."""
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
        return available - self.block_bytes if self.rules.spare_block else available

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
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return low

    def sequences(self, available: int, tokens: int) -> int:
        """Return how many requests of `tokens` tokens fit."""
        return max(self.usable(available), 0) // self.request_bytes(tokens)
