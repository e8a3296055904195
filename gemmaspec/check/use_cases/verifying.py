"""What verification waits for on a profile's machine, beyond the bytes of its cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from packaging.version import Version

from gemmaspec.check.predict.steps import server_of
from gemmaspec.check.predict.verifying import Build, FullLayers, kernel_of, seconds
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.rows import Setting

if TYPE_CHECKING:
    from gemmaspec.check.fit.memory_plan import MemoryPlan
    from gemmaspec.check.use_cases.server_facts import ServerFacts

_TRITON_38 = Version("0.33.0")
"""The first vLLM with Triton 3.8 (its METADATA requires torch 2.14)."""


def waiting_of(facts: ServerFacts) -> Callable[[int, int, int, float], float] | None:
    """Return how long a step waits for Triton's attention beyond the bytes of the full layers' cache.

    The function takes the prompt's tokens, requests, tokens that each verifies, and the seconds that a byte takes. None
    where another backend runs, or the kernel's times on this GPU are not known.
    """
    plan = facts.plan
    capability, fp8 = plan.device.capability, caches_fp8(facts)
    if known(facts.resolved.backend) != "TRITON_ATTN" or capability is None or fp8 is None:
        return None
    full, cache_bytes = full_layers(plan), _full_bytes(plan)
    newer = Version(plan.demand.vllm) >= _TRITON_38
    taken = tuple(facts.taken.patches)
    most = server_of(Setting(vllm=plan.demand.vllm, backend="TRITON_ATTN", patches=taken)).split
    build = {
        split: kernel_of(Build(capability=capability, newer=newer, fp8=fp8, split=split)) for split in (True, False)
    }
    if full is None or None in build.values():
        return None

    def waits(context: int, requests: int, tokens: int, byte_s: float) -> float:
        split = requests <= most
        kernel = build[split]
        assert kernel is not None
        took = seconds(kernel, full, split=split, context=context, requests=requests, tokens=tokens)
        return max(0.0, took - requests * context * cache_bytes * byte_s)

    return waits


def full_layers(plan: MemoryPlan) -> FullLayers | None:
    """Return the target's layers that see the whole prompt, on one of the GPUs; None without any."""
    layers = [layer for layer in plan.models.target.text.layers if layer.window is None]
    if not layers:
        return None
    heads = max(1, layers[0].kv_heads // plan.demand.tensor_parallel)
    return FullLayers(layers=len(layers), kv_heads=heads, queries=layers[0].heads // layers[0].kv_heads)


def caches_fp8(facts: ServerFacts) -> bool | None:
    """Return whether the cache is FP8; None where it is neither FP8 nor BF16, or not known."""
    cache = known(facts.resolved.cache) or ""
    if cache.startswith("fp8"):
        return True
    if cache == "bfloat16":
        return False
    return None


def _full_bytes(plan: MemoryPlan) -> int:
    """Return the bytes of one token's keys and values in the layers that see the whole prompt."""
    caches = {layer.name: layer.cache for layer in plan.layers}
    total = 0
    for index, layer in enumerate(plan.models.target.text.layers):
        if layer.shares_with is None:
            source = index
        else:
            source = layer.shares_with
        cache = caches.get(f"target.{source}")
        if cache and layer.window is None:
            total += cache.token_bytes
    return total
