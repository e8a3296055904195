"""The estimate as one document."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from gemmaspec.check.fit.advice import Advice
from gemmaspec.check.fit.demand import Demand
from gemmaspec.check.fit.kvgroups import Unplannable
from gemmaspec.check.fit.kvspec import LayerCache
from gemmaspec.check.fit.link import Link
from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.check.fit.roofline import ServingRoofline
from gemmaspec.check.fit.unknown import unknown
from gemmaspec.check.fit.weights import Weights
from gemmaspec.core.profile.device import Device
from gemmaspec.core.profile.model import Measured

_MOST_SEQUENCES = 64


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Everything that `gemmaspec fit` reports."""

    profile: str
    plan: MemoryPlan
    problems: tuple[str, ...]
    refused: tuple[str, ...]
    """Why vLLM or gemmaspec would refuse to start it, however much memory there is."""
    advice: tuple[Advice, ...]
    roofline: ServingRoofline | None
    """The bound that no server exceeds."""
    speed: Mapping[str, Any] | None
    """What `predict` says of this load: basis, why, notes and rows; None where there is no prediction."""
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]
    """Assumptions."""
    warnings: tuple[str, ...] = ()
    """CUDA graphs that the server lacks, and what brings them back; they are among the notes too."""
    attention: dict[str, str | None]
    """`target` and, with one, `draft` → the attention backend that they get; None where it is not known."""
    link: Link | None = None
    """What a step sends between machines; None for a server on one."""

    @property
    def fits(self) -> bool:
        """Whether the memory lets the server start."""
        return not (self.problems or self.refused)


def document(fit: Fit) -> dict[str, Any]:
    """Return all of it as plain data; sizes in bytes, lengths in tokens."""
    plan = fit.plan
    roofline = link = None
    if fit.roofline:
        roofline = dataclasses.asdict(fit.roofline) | {"cost_ratio": fit.roofline.step.cost}
    if fit.link:
        link = dataclasses.asdict(fit.link) | {"sending": fit.link.sending}
    asked = {
        "ok": fit.fits,
        "profile": fit.profile,
        "vllm": plan.demand.vllm,
        "machine": _machine(plan.device),
        "flags": _flags(plan.demand),
        "attention": fit.attention,
    }
    advice = [dataclasses.asdict(item) for item in fit.advice]
    memory = {
        "memory": _memory(plan),
        "kv_cache": _cache(plan),
        "problems": [*fit.refused, *fit.problems],
        "refused": list(fit.refused),
        "warnings": list(fit.warnings),
        "advice": advice,
    }
    measured = [one.model_dump(exclude_none=True) for one in fit.measured]
    speed = {"roofline": roofline, "speed": fit.speed, "link": link, "measured": measured}
    return asked | memory | speed | {"notes": list(fit.notes), "unknown": list(unknown(plan, fit.speed))}


_PRINTED: Final = (
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "cache_dtype", "draft_cache_dtype"),
    *("hybrid", "tensor_parallel", "nodes", "method", "draft_tokens", "utilization", "cpu_cache", "given_cache"),
    *("eager", "towers", "media", "whole_items", "runner", "graphs", "moe_backend", "defaults"),
)
"""What is printed of a demand: what a profile sets or vLLM resolves, by the names that scripts read."""


def _flags(demand: Demand) -> dict[str, Any]:
    return {name: getattr(demand, name) for name in _PRINTED}


def _machine(device: Device) -> dict[str, Any]:
    """Return a machine without its single GPUs, which the stages name."""
    return dataclasses.asdict(dataclasses.replace(device, each=())) | {"unified": device.unified}


def stage_rows(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    """Yield what each pipeline stage holds; nothing without stages. Sizes in bytes; stages are counted from 1."""
    if len(plan.by_stage) == 1:
        return
    for one in plan.by_stage:
        yield {
            "stage": one.stage + 1,
            "gpu": one.gpu.name,
            "total": one.gpu.memory,
            "layers": [one.layers_here.start, one.layers_here.stop - 1],
            "weights": one.weights,
            "available_for_cache": one.available,
            "num_blocks": _blocks(one),
            "fullest": one.stage == plan.stage,
        }


def _blocks(plan: MemoryPlan) -> int | None:
    """Return how many blocks there is room for; None if the cache cannot be planned."""
    try:
        return plan.cache.num_blocks(plan.available)
    except Unplannable:
        return None


def _with_total(weights: Weights) -> dict[str, Any]:
    return dataclasses.asdict(weights) | {"total": weights.total}


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    target = _with_total(plan.target)
    draft = _with_total(plan.draft) if plan.draft else None
    estimates = [dataclasses.asdict(overhead) for overhead in plan.overheads]
    not_reserved = dataclasses.asdict(plan.beyond) if plan.beyond else None
    return {
        "total": plan.gpu.memory,
        "free": plan.gpu.free,
        "requested": plan.requested,
        "target": target,
        "draft": draft,
        "weights": plan.weights,
        "loading_peak": plan.loading,
        "loading_held": plan.held,
        "estimates": estimates,
        "not_reserved": not_reserved,
        "available_for_cache": plan.available,
        "stages": list(stage_rows(plan)),
    }


def _cache(plan: MemoryPlan) -> dict[str, Any] | None:
    """Return the cache; None if vLLM cannot plan it, for which the problems give the reason."""
    try:
        cache = plan.cache
    except Unplannable:
        return None
    length, available = plan.demand.max_model_len, plan.available
    size = {
        "groups": len(cache.groups),
        "block_bytes": cache.block_bytes,
        "num_blocks": cache.num_blocks(available),
        "size_tokens": cache.logged_tokens(available, length),
        "max_concurrency": round(cache.concurrency(available, length), 3),
    }
    request = {
        "request_bytes": cache.request_bytes(length),
        "request_blocks": cache.blocks_per_request(length),
    }
    longest = {
        "longest": plan.longest,
        "longest_for_all": plan.longest_for_all,
        "sequences": cache.sequences(available, length),
        "longest_by_sequences": {str(number): longest for number, longest in longest_by_sequences(plan)},
    }
    return size | request | longest | {"layers": list(layer_rows(plan))}


def longest_by_sequences(plan: MemoryPlan) -> Iterator[tuple[int, int]]:
    """Return the maximum length of requests for 1, 2, 4 … concurrent ones."""
    limit, number = plan.models.target.text.max_position_embeddings, 1
    while number <= _MOST_SEQUENCES:
        longest = plan.cache.longest(plan.available, limit, number)
        if longest == 0:
            return
        yield number, longest
        number *= 2


def layer_rows(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    """Return the cache by kind of layer, after page sizes were unified."""
    planned = list(chain.from_iterable(group.layers for group in plan.cache.groups))
    for role, model in (("target", plan.models.target), ("draft", plan.models.draft)):
        if model is None:
            continue
        for kind in ("sliding", "full"):
            of_kind = [layer for layer in model.text.layers if layer.kind == kind]
            caches = [layer.cache for layer in planned if layer.kind == kind and layer.name.startswith(f"{role}.")]
            if not of_kind:
                continue
            first = of_kind[0]  # layers of one kind are alike
            kv_heads = max(1, first.kv_heads // plan.demand.tensor_parallel)
            yield {
                "role": role,
                "kind": kind,
                "layers": len(of_kind),
                "with_cache": len(caches),
                "window": first.window,
                "kv_heads": kv_heads,
                "head_dim": first.head_dim,
                "token_bytes": sum(cache.token_bytes for cache in caches),
                **_pages(caches[0] if caches else None),
            }


def _pages(cache: LayerCache | None) -> dict[str, Any]:
    """Return the pages of a layer's cache; None for layers that read the cache of others."""
    if cache is None:
        return {"block_size": None, "page_bytes": None, "padding_bytes": 0, "keeps_window_alone": False}
    return {
        "block_size": cache.block_size,
        "page_bytes": cache.page_bytes,
        "padding_bytes": cache.page_bytes - cache.block_size * cache.token_bytes,
        "keeps_window_alone": cache.sliding,
    }
