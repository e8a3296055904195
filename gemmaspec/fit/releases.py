"""How vLLM's KV cache planning differs by release, for models with full and sliding attention.

Read from vllm/v1/core/kv_cache_utils.py (0.33: kv_cache_planning.py), vllm/v1/kv_cache_interface.py,
vllm/model_executor/layers/attention/attention.py and the attention backends of every release.
What is not named here is the same in all of them, as far as such models go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.version import Version

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

    return KvRules(
        default_block=128 if cpu else 16,
        kernel_block=32 if cpu and since("0.29.0") else 16,
        sliding_block="largest" if since("0.30.0") else "smallest" if since("0.25.0") else "cache",
        promotes_block=since("0.27.0"),
        pads_pages=since("0.29.0") if cpu else since("0.24.0"),
        batches_in_flight=since("0.26.0"),
        spare_block=since("0.29.0"),
        tokens_by_group=not since("0.20.1"),
    )
