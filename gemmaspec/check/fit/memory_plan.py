"""Weights, overhead and KV cache on one machine: the memory left for the cache, and what fits into it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from gemmaspec.check.fit.demand import Demand
from gemmaspec.check.fit.images import sees_images
from gemmaspec.check.fit.kvgroups import KvCache, Unplannable, groups_of
from gemmaspec.check.fit.kvspec import Owned, kv_rules, layer_caches
from gemmaspec.check.fit.overhead import Overhead, full_step, gib, overheads
from gemmaspec.check.fit.weights import Weights, only_listed, rotary_key, weights_of
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.profile.device import Device
from gemmaspec.core.releases.items import Item, largest_item

HELD: Final = 8320 * 2**20
"""Bytes that a GPU held in addition to the weights at the peak of loading: 6.5 to 8.1 GiB for a 31B in NVFP4,
alone, with its tower, and with an E2B, on an H200 with 0.26.0. Smaller models and other formats were not measured."""


_FILLED: Final = 0.98
"""Share of a GPU's memory that can be filled, apart from the driver's own."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Target and draft, and whether each is quantized to FP8 while loading."""

    target: Checkpoint
    draft: Checkpoint | None
    target_fp8: bool = False
    draft_fp8: bool = False
    draft_ids: int | None = None
    """How many ids the draft's head has, where a list names them."""


@dataclass(frozen=True)
class MemoryPlan:
    """One profile on one machine. Sizes are in bytes, lengths in tokens."""

    models: Models
    demand: Demand
    device: Device
    only: int | None = None
    """The pipeline stage that this is about, counted from 0; None for the fullest, which decides the cache of all:
    each gets as many blocks as the one with the fewest (get_kv_cache_configs, every release)."""

    @cached_property
    def by_stage(self) -> tuple[MemoryPlan, ...]:
        """The memory of each pipeline stage; this alone without stages."""
        if len(self.demand.stages) == 1 or self.only is not None:
            return (self,)
        return tuple(replace(self, only=stage) for stage in range(len(self.demand.stages)))

    @cached_property
    def stage(self) -> int:
        """The pipeline stage that this is about, counted from 0; of all of them, the one with the fewest blocks."""
        if self.only is not None or len(self.demand.stages) == 1:
            return self.only or 0
        try:
            rooms = [(plan.cache.num_blocks(plan.available), plan.available) for plan in self.by_stage]
        except Unplannable:
            return len(self.demand.stages) - 1
        return min(range(len(rooms)), key=lambda stage: (rooms[stage], -stage))  # of equals the last, which samples too

    @property
    def layers_here(self) -> range:
        """The decoder layers of that stage."""
        return self.demand.stages[self.stage]

    @cached_property
    def in_one_stage(self) -> MemoryPlan:
        """The same with all layers on one GPU, or on as many as tensor parallelism takes."""
        if len(self.demand.stages) == 1:
            return self
        every = range(len(self.models.target.text.layers))
        return replace(self, demand=replace(self.demand, stages=(every,)), only=None)

    @property
    def gpu(self) -> Device:
        """The GPU of that stage with the least memory; without stages, that of the server."""
        shards = self.demand.tensor_parallel
        mine = self.device.each[self.stage * shards : (self.stage + 1) * shards]
        if len(self.demand.stages) == 1 or not mine:
            return self.device
        return min(mine, key=lambda gpu: (gpu.memory, gpu.free or 0))

    @cached_property
    def target(self) -> Weights:
        """The target in the memory of one GPU."""
        model, fp8, gpus = self.models.target, self.models.target_fp8, self.demand.tensor_parallel
        return weights_of(
            model,
            vllm=self.demand.vllm,
            towers=self.demand.towers,
            fp8_online=fp8,
            gpus=gpus,
            stage=self.layers_here,
        )

    @cached_property
    def draft(self) -> Weights | None:
        """The draft in the memory of one GPU, which is on the last stage alone.

        Its towers are loaded too: vLLM builds the whole model.
        """
        model, fp8, gpus = self.models.draft, self.models.draft_fp8, self.demand.tensor_parallel
        if model is None or self.stage < len(self.demand.stages) - 1:
            return None
        weights = weights_of(model, vllm=self.demand.vllm, fp8_online=fp8, gpus=gpus)
        same = rotary_key(model.text) == rotary_key(self.models.target.text)
        weights = replace(weights, rotary=0) if same else weights
        if self.models.draft_ids is None:
            return weights
        return only_listed(weights, model, self.models.draft_ids)

    @cached_property
    def overheads(self) -> tuple[Overhead, ...]:
        """Everything else that must fit besides the cache."""
        return overheads(self.models.target, self.models.draft, self.demand, self.device)

    @cached_property
    def beyond(self) -> Overhead | None:
        """What a step needs that vLLM does not reserve, where all of max_num_seqs requests draft at once; None on a
        CPU, or where what is reserved is enough."""
        models = [model for model in (self.models.target, self.models.draft) if model]
        profiled = sum(overhead.nbytes for overhead in self.overheads if overhead.name == "activations")
        if self.device.cpu:
            return None
        return full_step(models, self.demand, profiled)

    @property
    def weights(self) -> int:
        """Bytes of both models on one GPU."""
        return self.target.total + (self.draft.total if self.draft else 0)

    @property
    def loading(self) -> int:
        """Peak bytes while loading: with a draft, each model's embeddings briefly exist twice."""
        if not self.draft:
            return self.weights
        first = self.target.total + self.target.embeddings
        both = self.target.total + self.draft.total + self.draft.embeddings
        return max(first, both)

    @property
    def held(self) -> int | None:
        """Peak bytes that the GPU may hold while loading, including memory freed but kept by torch; None on a CPU."""
        if self.device.cpu:
            return None
        return self.weights + HELD

    @property
    def requested(self) -> int:
        """gpu_memory_utilization of the total memory, which vLLM requires to be free when it starts."""
        return math.ceil(self.gpu.memory * self.demand.utilization)

    @property
    def item(self) -> Item | None:
        """The image or video that a batch must hold whole, if any."""
        sees = sees_images(self.models.target, self.demand) and self.demand.whole_items
        if sees:
            return largest_item(self.demand.media)
        return None

    @property
    def available(self) -> int:
        """Memory left for the KV cache: "Available KV cache memory" in the log. Can be negative."""
        if self.demand.cpu_cache is not None:
            return self.demand.cpu_cache
        if self.demand.given_cache is not None:
            return self.demand.given_cache
        reserved = sum(overhead.nbytes for overhead in self.overheads if overhead.reserved)
        return self.requested - self.weights - reserved

    @cached_property
    def layers(self) -> tuple[Owned, ...]:
        """Every layer with its own cache, the target's first."""
        layers = list(self._caches(self.models.target, "target", self.demand.cache_dtype))
        if self.models.draft:
            layers += self._caches(self.models.draft, "draft", self.demand.draft_cache_dtype)
        return tuple(layers)

    def _caches(self, model: Checkpoint, role: str, dtype: str) -> Iterator[Owned]:
        return layer_caches(
            model.text,
            role=role,
            rules=kv_rules(self.demand.vllm, cpu=self.device.cpu),
            block_size=self.demand.block_size,
            dtype=dtype,
            tensor_parallel=self.demand.tensor_parallel,
        )

    @cached_property
    def cache(self) -> KvCache:
        """The KV cache. Raises Unplannable if vLLM fails before it checks the memory."""
        rules = kv_rules(self.demand.vllm, cpu=self.device.cpu)
        groups = groups_of(self.layers, rules, hybrid=self.demand.hybrid, joins_windows=self.demand.joins_windows)
        return KvCache(groups=tuple(groups), rules=rules, in_flight=self.demand.in_flight, here=self._here)

    @property
    def _here(self) -> frozenset[str] | None:
        """The names of the stage's layers; None without stages."""
        if len(self.demand.stages) == 1:
            return None
        mine = {f"target.{index}" for index in self.layers_here}
        if self.draft:
            mine |= {layer.name for layer in self.layers if layer.name.startswith("draft.")}
        return frozenset(mine)

    @property
    def longest(self) -> int:
        """The largest max_model_len with which the server starts, up to the target's maximum."""
        return self.cache.longest(self.available, self.models.target.text.max_position_embeddings)

    @property
    def longest_for_all(self) -> int:
        """The largest max_model_len with which max_num_seqs requests fit."""
        limit = self.models.target.text.max_position_embeddings
        return self.cache.longest(self.available, limit, self.demand.max_num_seqs)

    def problems(self) -> list[str]:
        """Yield why the server would not start."""
        wrong = list(self._too_few_gpus())
        for plan in self.by_stage:
            where = f"stage {plan.stage + 1}: " if len(self.by_stage) > 1 else ""
            too_much = (*plan._crowding(), *plan._too_large_a_cache(), *plan._too_heavy())
            wrong += [f"{where}{problem}" for problem in too_much]
        wrong += self._too_small_a_batch()
        try:
            cache = self.cache
        except Unplannable as error:
            return [*wrong, str(error)]
        if self.available <= 0:
            wrong.append(f"nothing is left for the KV cache: {gib(-self.available)} are missing")
        elif not cache.starts_with(self.available, self.demand.max_model_len):
            needed, left = cache.request_bytes(self.demand.max_model_len), cache.usable(self.available)
            length = self.demand.max_model_len
            wrong.append(f"one request of {length:,} tokens needs {gib(needed)} of KV cache, but {gib(left)} are left")
        return wrong

    def _too_few_gpus(self) -> Iterator[str]:
        """Yield a problem if there are too few GPUs (ParallelConfig in vllm/config/parallel.py, every release)."""
        shards, stages = self.demand.tensor_parallel, len(self.demand.stages)
        wanted, each, nodes = shards * stages, self.device.gpus, self.demand.nodes
        if not self.device.cpu and each is not None and wanted > each * nodes:
            has = f"{each} GPU{'s' if each > 1 else ''}"
            if nodes == 1:
                have = f"{self.device.name} has {has}"
            else:
                have = f"{nodes} machines with {has} each have fewer"
            asked = f"tensor_parallel_size {shards}"
            if stages > 1:
                asked += f" times pipeline_parallel_size {stages}"
            yield f"{asked} needs {wanted} GPUs, and {have}; nodes: N is for several machines"

    def _too_heavy(self) -> Iterator[str]:
        if self.gpu.free is None:
            free = self.gpu.memory
        else:
            free = self.gpu.free
        if not self.device.cpu and self.loading > free:
            yield f"loading takes {gib(self.loading)}, but the machine has {gib(free)}"

    def _too_large_a_cache(self) -> Iterator[str]:
        """Yield a problem if a cache of a given size does not fit: vLLM takes it without asking what is left.

        Compiling is over before the cache is allocated.
        """
        given = self.demand.given_cache
        if given is None:
            return
        by_name = {overhead.name: overhead.nbytes for overhead in self.overheads}
        compiling = by_name.pop("compiling", 0)
        wanted = self.weights + sum(by_name.values()) + max(given, compiling)
        most = round(self.gpu.memory * _FILLED)
        if wanted > most:
            yield f"with a KV cache of {gib(given)} it needs {gib(wanted)}, but {gib(most)} can be filled"

    def _too_small_a_batch(self) -> Iterator[str]:
        item, batch = self.item, self.demand.max_num_batched_tokens
        if item and item.tokens > batch:
            yield (
                f"one {item.modality} takes {item.tokens:,} tokens, but a batch of {batch:,} cannot hold it: the start "
                'fails with "Chunked MM input disabled"'
            )

    def _crowding(self) -> Iterator[str]:
        """Yield a problem if too little memory is free, as far as it is known."""
        free, wanted = self.gpu.free, self.demand.cpu_cache or self.requested
        if free is None or free >= wanted:
            return
        share = f"gpu_memory_utilization {self.demand.utilization:g}"
        if self.demand.cpu_cache:
            why = "VLLM_CPU_KVCACHE_SPACE"
        else:
            why = share
        yield (
            f"{gib(free)} of {gib(self.gpu.memory)} are free now, but vLLM requires {gib(wanted)} ({why}) at the start"
        )


def parts(plan: MemoryPlan) -> list[tuple[str, int]]:
    """Return what fills the memory of one GPU, in bytes, and what stays free; parts of no size are left out.

    Together they are more than the memory where the profile does not fit.
    """
    graphs = other = 0
    for overhead in plan.overheads:
        if overhead.name == "CUDA graphs":
            graphs += overhead.nbytes
        else:
            other += overhead.nbytes
    draft = plan.draft.total if plan.draft else 0
    uses = [("weights", plan.target.total), ("draft", draft), ("cache", max(0, plan.available))]
    uses += [("graphs", graphs), ("other", other)]
    free = plan.gpu.memory - sum(nbytes for _, nbytes in uses)
    return [(name, nbytes) for name, nbytes in (*uses, ("free", free)) if nbytes > 0]
