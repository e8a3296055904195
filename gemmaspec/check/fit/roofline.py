"""How fast any server can be: bytes that a step must read over what the memory can deliver.

Generating is bound by memory: every step reads the weights and the cache once, however many tokens it verifies. With
a draft that proposes k tokens of which each is accepted with probability a, a step yields on average
(1 - a^(k+1)) / (1 - a) tokens and costs c k + 1 times what it costs without, c being the draft's cost over the
target's (Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, 2023, equation 1 and
theorem 3.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.releases.drafting import BLOCKS

_CACHED: Final = 128 * 2**20
"""Bytes that a GPU may still have in its own cache from the pass before: the largest such cache of any machine here
is a B200's, 126 MB. The bound takes that much off every pass."""


def tokens_per_step(a: float, k: int) -> float:
    """Return the expected tokens of a step: the accepted ones and the one that the target adds."""
    if a >= 1:
        return float(k + 1)
    return (1 - a ** (k + 1)) / (1 - a)


def acceptance_of(length: float, k: int) -> float:
    """Return the acceptance per token with which a step yields `length` tokens on average."""
    if length >= k + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if tokens_per_step(middle, k) < length:
            low, high = (middle, high)
        else:
            low, high = (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class StepBytes:
    """What one step reads, in bytes."""

    target: int
    target_cache: int
    draft: int
    """Bytes of one pass of the draft."""
    draft_cache: int

    @property
    def alone(self) -> int:
        """Without speculation."""
        return self.target + self.target_cache

    @property
    def cost(self) -> float:
        """c: a pass of the draft over one of the target."""
        return (self.draft + self.draft_cache) / self.alone

    def reads(self, passes: int) -> list[int]:
        """Return bytes of each pass of a step: the target's, then the draft's."""
        return [self.alone, *[self.draft + self.draft_cache] * passes]


@dataclass(frozen=True, kw_only=True)
class ServingRoofline:
    """The maximum speed of any server on this machine. Speeds are totals of all requests."""

    bandwidth: float
    """Of one GPU, in bytes per second; what a step reads is on one GPU too."""
    context: int
    concurrency: int
    step: StepBytes
    """A step with one token per request."""
    verifying: StepBytes
    """A step that also verifies every draft token."""
    passes: int
    """Draft passes per step."""
    alone: float
    """The roofline without speculation, in tokens per second."""
    bound: float
    """The same with every draft token accepted; equal to `alone` without speculation."""


def roofline(plan: MemoryPlan, *, context: int = 1024, concurrency: int = 1) -> ServingRoofline | None:
    """Return the roofline for requests of `context` tokens that share no prompt; None without a known bandwidth."""
    if plan.device.bandwidth is None:
        return None
    bandwidth = plan.device.bandwidth
    stages = len(plan.demand.stages)  # one after another for one request, at work on several batches for more
    plan = plan.in_one_stage
    k = plan.demand.draft_tokens
    step = step_bytes(plan, context=context, concurrency=concurrency, tokens=1)
    verifying = step_bytes(plan, context=context, concurrency=concurrency, tokens=k + 1)
    passes = 0  # how often the draft runs in a step
    if plan.draft:
        passes = 1 if plan.demand.method in BLOCKS else k
    together = -(-concurrency // stages)
    least = step_bytes(plan, context=context, concurrency=together, tokens=k + 1, alike=True)
    alone = concurrency * bandwidth / _at_least(least, 0)
    with_draft = (k + 1) * concurrency * bandwidth / _at_least(least, passes)
    return ServingRoofline(
        bandwidth=bandwidth,
        context=context,
        concurrency=concurrency,
        step=step,
        verifying=verifying,
        passes=passes,
        alone=alone,
        bound=max(alone, with_draft) if k else alone,
    )


def _at_least(step: StepBytes, passes: int) -> int:
    """Return the bytes that must come from memory, even if the GPU's cache still has data of the earlier pass."""
    target = max(step.alone - _CACHED, 1)
    return target + passes * max(step.draft + step.draft_cache - _CACHED, 0)


def step_bytes(plan: MemoryPlan, *, context: int, concurrency: int, tokens: int, alike: bool = False) -> StepBytes:
    """Return what a step over `tokens` tokens of each request reads; `alike`: all of them use the same experts."""
    plan, all_tokens = plan.in_one_stage, concurrency * tokens
    return StepBytes(
        target=plan.target.read(all_tokens, alike=alike),
        target_cache=concurrency * _cache_bytes(plan, "target", context),
        draft=_draft_bytes(plan, concurrency, alike=alike),
        draft_cache=concurrency * _cache_bytes(plan, "draft", context),
    )


def _draft_bytes(plan: MemoryPlan, tokens: int, *, alike: bool) -> int:
    """Return the weights that a pass of the draft reads; a draft without a vocabulary table uses the target's head.

    vllm/v1/worker/gpu/spec_decode/dflash/utils.py, 0.32.0.
    """
    if plan.draft is None:
        return 0
    read = plan.draft.read(tokens, alike=alike)
    if plan.draft.head or plan.draft.embeddings:
        return read
    return read + (plan.target.head or plan.target.embeddings)


def _cache_bytes(plan: MemoryPlan, role: str, context: int) -> int:
    """Return the keys and values that one request's step reads; a layer that shares another's cache reads it again."""
    model = plan.models.target if role == "target" else plan.models.draft
    if model is None:
        return 0
    caches = {layer.name: layer.cache for layer in plan.layers}
    total = 0
    for index, layer in enumerate(model.text.layers):
        if layer.shares_with is None:
            source = index
        else:
            source = layer.shares_with
        cache = caches.get(f"{role}.{source}")
        if cache:
            total += cache.token_bytes * min(context, layer.window or context)
    return total


def weights_format(model: Checkpoint | None, fp8: bool) -> Literal["4-bit", "8-bit", "16-bit"]:
    """Return the format of a model's weights as they are multiplied; `fp8`: made FP8 while loading."""
    if model is None or model.quantization is None:
        if fp8:
            return "8-bit"
        return "16-bit"
    format_ = f"{model.quantization.method} {model.quantization.algorithm or ''}".lower()
    if "8" in format_ and "fp4" not in format_:
        return "8-bit"
    return "4-bit"
