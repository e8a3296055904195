"""How fast it can be: bytes that a step must read over what the memory can deliver, and what speculation makes of it.

Generating is bound by memory: every step reads the weights and the cache once, however many tokens it verifies. With
a draft that proposes k tokens of which each is accepted with probability a, a step yields on average
(1 - a^(k+1)) / (1 - a) tokens and costs c k + 1 times what it costs without, c being the draft's cost over the
target's (Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, 2023, equation 1 and
theorem 3.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmaspec.fit.plan import Plan
from gemmaspec.profile.model import Measured

ASSUMED: Final = (0.5, 0.7, 0.9)
"""Acceptance of a token, where nothing was measured."""
_PARALLEL: Final = frozenset({"dflash", "dspark"})
"""Methods that draft all tokens in one pass."""


def tokens_per_step(a: float, k: int) -> float:
    """Expected tokens of a step: the accepted ones and the one that the target adds."""
    return float(k + 1) if a >= 1 else (1 - a ** (k + 1)) / (1 - a)


def acceptance_of(length: float, k: int) -> float:
    """The acceptance of a token with which a step yields `length` tokens on average."""
    if length >= k + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, k) < length else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step reads, in bytes."""

    target: int
    target_cache: int
    draft: int
    """One pass of the draft."""
    draft_cache: int

    @property
    def alone(self) -> int:
        """Without speculation."""
        return self.target + self.target_cache

    @property
    def cost(self) -> float:
        """c: a pass of the draft over one of the target."""
        return (self.draft + self.draft_cache) / self.alone


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Tokens per second with one acceptance."""

    acceptance: float
    tokens_per_step: float
    tokens_per_second: float
    """Of all requests together."""
    speedup: float
    basis: str
    """Where the acceptance comes from: a measured length, or assumed."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """No server on this machine can be faster."""

    bandwidth: float
    context: int
    concurrency: int
    step: Step
    alone: float
    """Tokens per second without speculation, of all requests together."""
    passes: int
    """Passes of the draft in a step."""
    speeds: tuple[Speed, ...]


def ceiling(plan: Plan, measured: tuple[Measured, ...], *, context: int = 1024, concurrency: int = 1) -> Ceiling | None:
    """The ceiling for requests of `context` tokens; None where the bandwidth is not known."""
    if plan.device.bandwidth is None:
        return None
    bandwidth = plan.device.bandwidth * plan.flags.tensor_parallel
    k = plan.flags.draft_tokens
    step = step_bytes(plan, context=context, concurrency=concurrency, tokens=1)
    alone = bandwidth * concurrency / step.alone
    passes = 0 if not plan.draft else 1 if plan.flags.method in _PARALLEL else k
    verifying = step_bytes(plan, context=context, concurrency=concurrency, tokens=k + 1)
    seconds = (verifying.alone + passes * (step.draft + step.draft_cache)) / bandwidth
    speeds = tuple(_speed(a, k, concurrency / seconds, alone, basis) for a, basis in _acceptances(measured, k))
    return Ceiling(
        bandwidth=bandwidth,
        context=context,
        concurrency=concurrency,
        step=step,
        alone=alone,
        passes=passes,
        speeds=speeds if k else (),
    )


def step_bytes(plan: Plan, *, context: int, concurrency: int, tokens: int) -> Step:
    """What a step over `tokens` tokens of each request reads."""
    all_tokens = concurrency * tokens
    draft = plan.draft.read(concurrency) if plan.draft else 0
    return Step(
        target=plan.target.read(all_tokens),
        target_cache=concurrency * _cache_bytes(plan, "target", context),
        draft=draft,
        draft_cache=concurrency * _cache_bytes(plan, "draft", context),
    )


def _cache_bytes(plan: Plan, role: str, context: int) -> int:
    """Keys and values that one request's step reads; a layer that shares another's cache reads it once more."""
    model = plan.models.target if role == "target" else plan.models.draft
    if model is None:
        return 0
    own = {layer.name: layer.cache for layer in plan.layers}
    total = 0
    for index, layer in enumerate(model.text.layers):
        source = index if layer.shares_with is None else layer.shares_with
        cache = own.get(f"{role}.{source}")
        if cache:
            total += cache.token_bytes * min(context, layer.window or context)
    return total


def _acceptances(measured: tuple[Measured, ...], k: int) -> list[tuple[float, str]]:
    lengths = [one for one in measured if one.acceptance_length is not None]
    if lengths:
        return [
            (acceptance_of(one.acceptance_length or 1, k), f"measured length {one.acceptance_length:g}, {one.source}")
            for one in lengths
        ]
    return [(a, "assumed") for a in ASSUMED]


def _speed(a: float, k: int, steps_per_second: float, alone: float, basis: str) -> Speed:
    expected = tokens_per_step(a, k)
    return Speed(
        acceptance=a,
        tokens_per_step=expected,
        tokens_per_second=expected * steps_per_second,
        speedup=expected * steps_per_second / alone,
        basis=basis,
    )
