"""What to change so that more fits, with the effect of each change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from packaging.version import Version

from gemmaspec.check.fit.kvgroups import Unplannable
from gemmaspec.check.fit.memory_plan import MemoryPlan

_MOST: Final = 0.95
_MOST_SHARED: Final = 0.85
"""Maximum share of memory that the operating system uses too; lint warns about more (GS504)."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One change, and what fits after it."""

    change: str
    """The options to type: --set serve.kv_cache_dtype=fp8."""
    effect: str
    starts: bool
    longest: int
    """max_model_len for one request."""
    sequences: int
    """max_num_seqs after it."""
    longest_for_all: int
    """max_model_len for that many concurrent requests."""


Changed = tuple[str, MemoryPlan, str]


def advice(plan: MemoryPlan) -> list[Advice]:
    """Yield changes that help, each on its own; those without a cost come first."""
    before = _reach(plan)
    helpful = []
    for change, changed, effect in _changes(plan):
        after = _reach(changed)
        starts = not changed.problems()
        if after > before or (starts and plan.problems()):
            helpful.append(
                Advice(
                    change=change,
                    effect=effect,
                    starts=starts,
                    longest=after[0],
                    sequences=changed.demand.max_num_seqs,
                    longest_for_all=after[1],
                )
            )
    return helpful


def _reach(plan: MemoryPlan) -> tuple[int, int]:
    try:
        return plan.longest, plan.longest_for_all
    except Unplannable:
        return 0, 0


def _changes(plan: MemoryPlan) -> Iterator[Changed]:
    for change in (
        _patch,
        _cache_of_bytes,
        _hybrid,
        _no_towers,
        _batch,
        _utilization,
        _sequences,
        _gpus,
        _length,
        _no_draft,
    ):
        yield from change(plan)


def _with(plan: MemoryPlan, **changed: object) -> MemoryPlan:
    return MemoryPlan(plan.models, replace(plan.demand, **changed), plan.device)  # type: ignore[arg-type]


def _patch(plan: MemoryPlan) -> Iterator[Changed]:
    if not plan.demand.joins_windows and not plan.demand.hybrid:
        changed = _with(plan, joins_windows=True)
        yield "patches.required: add kv-spec-uniform-valueerror", changed, "lets one group hold two windows"


def _cache_of_bytes(plan: MemoryPlan) -> Iterator[Changed]:
    """Yield a cache of one byte per number: FP8, or int8 where vLLM refuses FP8 (GS307)."""
    if plan.demand.cache_dtype.startswith(("fp8", "int", "nvfp4")):
        return
    wanted = "int8_per_token_head" if _refuses_fp8(plan) else "fp8"
    changed = _with(plan, cache_dtype=wanted, draft_cache_dtype=wanted)
    yield f"--set serve.kv_cache_dtype={wanted}", changed, "one byte per number in the cache"


def _refuses_fp8(plan: MemoryPlan) -> bool:
    """Return whether no backend takes an FP8 cache: below compute capability 8.9, from 0.24.0 on."""
    capability = plan.device.capability
    if capability is None or Version(plan.demand.vllm) < Version("0.24.0"):
        return False
    major, _, minor = capability.partition(".")
    return (int(major), int(minor or 0)) < (8, 9)


def _hybrid(plan: MemoryPlan) -> Iterator[Changed]:
    """Yield the hybrid manager, unless a draft model's layers would get several groups, which runner v1 cannot use."""
    may = plan.demand.method != "draft_model" or plan.demand.runner == "v2"
    if not plan.demand.hybrid and may:
        changed = _with(plan, hybrid=True)
        yield "--set serve.disable_hybrid_kv_cache_manager=null", changed, "sliding layers keep only their window"


def _no_towers(plan: MemoryPlan) -> Iterator[Changed]:
    unified = plan.models.target.model_type == "gemma4_unified"  # its encoders are loaded all the same
    if plan.demand.towers and plan.target.towers and not unified:
        changed = _with(plan, towers=frozenset())
        yield "--set serve.language_model_only=true", changed, "text only, without image and audio encoders"


def _batch(plan: MemoryPlan) -> Iterator[Changed]:
    batch, least = plan.demand.max_num_batched_tokens, plan.item.tokens if plan.item else 0
    if batch < least:
        changed = _with(plan, max_num_batched_tokens=least)
        yield f"--set serve.max_num_batched_tokens={least}", changed, "room for a whole item"
    elif batch > max(2048, least) and not plan.device.cpu:
        smaller = max(2048, least)
        changed = _with(plan, max_num_batched_tokens=smaller)
        yield f"--set serve.max_num_batched_tokens={smaller}", changed, "smaller activations, slower prefill"


def _utilization(plan: MemoryPlan) -> Iterator[Changed]:
    """Yield the smallest share that lets it start, else the largest: what is free now, at most 0.95 (0.85)."""
    if plan.demand.cpu_cache is not None or plan.demand.given_cache is not None:
        return
    most = _MOST_SHARED if plan.device.unified else _MOST
    if plan.device.free is not None:
        most = min(most, *(one.gpu.free / one.gpu.memory for one in plan.by_stage if one.gpu.free is not None))
    shares = [share / 100 for share in range(1, int(most * 100) + 1)]
    wanted = shares
    if not _too_much(plan):
        wanted = [share for share in shares if share > plan.demand.utilization]
    if not wanted:
        return
    least = bisect_left(wanted, True, key=lambda share: not _with(plan, utilization=share).problems())
    if plan.problems() and least < len(wanted):
        share = wanted[least]
    else:
        share = wanted[-1]
    changed = _with(plan, utilization=share)
    change, effect = f"--set serve.gpu_memory_utilization={share:g}", f"{share:.0%} of the memory for vLLM"
    yield change, changed, effect
    longest = _safely(lambda: changed.longest)
    if _too_much(plan) and changed.problems() and 0 < longest < plan.demand.max_model_len:
        shorter = _with(plan, utilization=share, max_model_len=longest)
        yield f"{change} --set serve.max_model_len={longest}", shorter, f"{effect}, and the longest that fits"


def _too_much(plan: MemoryPlan) -> bool:
    return any(one.gpu.free is not None and one.gpu.free < one.requested for one in plan.by_stage)


def _gpus(plan: MemoryPlan) -> Iterator[Changed]:
    """Yield twice the GPUs of one machine, where they are too small and the machine has, or may have, as many."""
    wider = 2 * plan.demand.tensor_parallel
    one_machine = plan.demand.nodes == 1 and not plan.device.cpu and len(plan.demand.stages) == 1
    if one_machine and plan.device.gpus and wider <= plan.device.gpus and plan.problems():
        changed = _with(plan, tensor_parallel=wider)
        yield f"--set serve.tensor_parallel_size={wider}", changed, f"{wider} GPUs of this kind, each with a part of it"


def _sequences(plan: MemoryPlan) -> Iterator[Changed]:
    """Yield as many sequences as fit; if nothing fits, halve them until the server starts."""
    number = _safely(lambda: plan.cache.sequences(plan.available, plan.demand.max_model_len))
    if number == 0:
        number = plan.demand.max_num_seqs // 2
        while number and _with(plan, max_num_seqs=number).problems():
            number //= 2
    if 0 < number < plan.demand.max_num_seqs:
        changed = _with(plan, max_num_seqs=number)
        yield f"--set serve.max_num_seqs={number}", changed, "fewer requests at once, each of which fits"


def _length(plan: MemoryPlan) -> Iterator[Changed]:
    longest = _safely(lambda: plan.longest)
    if 0 < longest < plan.demand.max_model_len:
        changed = _with(plan, max_model_len=longest)
        yield f"--set serve.max_model_len={longest}", changed, "the longest that fits"


def _no_draft(plan: MemoryPlan) -> Iterator[Changed]:
    if plan.models.draft:
        models = replace(plan.models, draft=None)
        demand = replace(plan.demand, method=None, draft_tokens=0)
        yield "--no-spec", MemoryPlan(models, demand, plan.device), "no draft, no speculation"


def _safely(ask: Callable[[], int]) -> int:
    try:
        return ask()
    except Unplannable:
        return 0
