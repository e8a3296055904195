"""How long Triton's attention takes to read the cache while a step verifies drafted tokens.

Bytes are not all of it. A program reads the keys of one head in tiles of 32, and its loop takes a time for each tile,
whatever the memory delivers. Where the cache is not split, one program for each KV head and block of tokens reads the
whole of it, so that few programs are busy and all wait for the slowest: tiles times the time of a tile times waves.
Where it is split, the programs share the tiles evenly.

Computed, not measured, on a Spark: vLLM's own kernel was compiled for sm_121 with the Triton of each release, and the
loop's instructions were counted. That of Triton 3.7.1 with an FP8 cache is as long as on Hopper, where a tile was
measured, and takes the ratio of the clocks; the others are in proportion. ±20 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_TILE: Final = 32
"""Keys that one turn of the loop reads; times of loops that read 16 are for two turns."""
_ROWS: Final = 16
"""Query rows of one program, at least: new tokens times the query heads that share a KV head
(BLOCK_M in vllm/v1/attention/ops/triton_unified_attention.py, from 0.26.0)."""


@dataclass(frozen=True, kw_only=True)
class FullLayers:
    """The layers of a target whose tokens see the whole prompt."""

    layers: int
    kv_heads: int
    """Of one layer."""
    queries: int
    """Query heads that share a KV head."""

    def programs(self, tokens: int, requests: int) -> int:
        """Return how many programs of one layer have work, before the cache is split."""
        each = max(1, _ROWS // self.queries)
        return math.ceil(tokens / each) * self.kv_heads * requests


@dataclass(frozen=True)
class Kernel:
    """One build of the kernel for heads of 512 on one GPU."""

    tile_s: float
    """Seconds that a program takes for a tile."""
    at_once: int
    """Programs that run at once: multiprocessors times the blocks that fit on one."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """What decides which build runs."""

    capability: str
    newer: bool
    """Whether vLLM brings Triton 3.8, as 0.33.0 does; 0.26 to 0.32 have 3.6 and 3.7."""
    fp8: bool
    """Whether the cache is FP8."""
    split: bool


_SPARK: Final = "12.1"
_HOPPER: Final = "9.0"
_KERNELS: Final = {
    # Triton 3.7.1 multiplies no FP8 natively on sm_121: 255 registers with spills, one block a multiprocessor
    Build(capability=_SPARK, newer=False, fp8=True, split=False): Kernel(4.5e-6, 48),
    Build(capability=_SPARK, newer=False, fp8=True, split=True): Kernel(2.8e-6, 48),
    Build(capability=_SPARK, newer=False, fp8=False, split=False): Kernel(2.6e-6, 48),
    Build(capability=_SPARK, newer=False, fp8=False, split=True): Kernel(2.46e-6, 96),
    # Triton 3.8.0 does
    Build(capability=_SPARK, newer=True, fp8=True, split=False): Kernel(2.9e-6, 96),
    Build(capability=_SPARK, newer=True, fp8=True, split=True): Kernel(2.04e-6, 96),
    Build(capability=_SPARK, newer=True, fp8=False, split=False): Kernel(2.55e-6, 48),
    Build(capability=_SPARK, newer=True, fp8=False, split=True): Kernel(2.4e-6, 96),
    # measured on an H200 after 131,072 tokens: 22.3 ms a layer of the 31B in one piece
    Build(capability=_HOPPER, newer=False, fp8=True, split=False): Kernel(5.45e-6, 132),
    Build(capability=_HOPPER, newer=False, fp8=True, split=True): Kernel(3.4e-6, 132),
}


def kernel_of(build: Build) -> Kernel | None:
    """Return the build's times; None where nobody has compiled or measured it, and its bytes are all that is known."""
    return _KERNELS.get(build)


def seconds(kernel: Kernel, full: FullLayers, *, split: bool, context: int, requests: int, tokens: int) -> float:
    """Return what one step's kernels need at least to verify `tokens` tokens of each request after `context`."""
    tiles = math.ceil(context / _TILE)
    programs = full.programs(tokens, requests)
    if split:
        return full.layers * programs * tiles * kernel.tile_s / kernel.at_once
    return full.layers * tiles * kernel.tile_s * math.ceil(programs / kernel.at_once)
