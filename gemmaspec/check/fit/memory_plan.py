"""Weights, overhead and KV cache on one machine: the memory left for the cache, and what fits into it.

The size of the weights once vLLM has loaded them, and the part that a step reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from packaging.version import Version

from gemmaspec.check.fit.flags import Flags
from gemmaspec.check.fit.kvgroups import KvCache, Owned, Unplannable, groups_of, kv_rules, layer_caches
from gemmaspec.check.fit.overhead import Overhead, gib, overheads, sees_images
from gemmaspec.core.checkpoint.parts import Checkpoint, Layer, Tensor, TextModel, part_of
from gemmaspec.core.profile.device import Device
from gemmaspec.core.releases.batch import Item, largest_item

_LAYER: Final = re.compile(r"\blayers\.([0-9]+)\.")
_TOWERS: Final = ("vision", "audio")
_KEYS: Final = ".self_attn.k_proj."
_KEYS_AND_VALUES: Final = (".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.")
_EXPERTS: Final = re.compile(r"\.experts\b")
_SIXTEEN_BITS: Final = ("BF16", "F16")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One model in memory, in bytes."""

    decoder: int
    """Decoder layers without routed experts."""
    experts: int
    """Routed experts of all layers."""
    embeddings: int
    """Input embeddings; a tied output head is the same table."""
    head: int
    """A separate output head."""
    per_layer: int
    """Per-layer embeddings of E2B and E4B: one row of each layer is read for a token."""
    towers: int
    """Image and audio encoders."""
    rotary: int
    """Tables of the rotary embedding, one for each kind of attention: a row for every position of the model's own
    longest context, however long `max_model_len` is."""
    experts_share: float
    """Share of the experts that one token uses."""
    head_of_a_token: int | None = None
    """Bytes of the output head that one token reads, if centroids choose a few of its rows; None for all of it."""

    @property
    def total(self) -> int:
        """Total bytes."""
        stored = self.decoder + self.experts + self.embeddings + self.head + self.per_layer + self.towers
        return stored + self.rotary

    def read(self, tokens: int, *, alike: bool = False) -> int:
        """Return the bytes that one pass over `tokens` tokens reads: every layer, the head, and all used experts.

        With n experts of which a token uses m, t tokens use 1 - (1 - m/n)^t of them, if they choose independently.
        Tokens of one text do not; `alike` computes with all of them choosing the same experts, which is the least.
        """
        used = self.experts_share if alike else 1 - (1 - self.experts_share) ** tokens
        head = self.head or self.embeddings
        if self.head_of_a_token is not None:
            head = min(head, self.head_of_a_token * (1 if alike else tokens))
        return self.decoder + head + round(self.experts * used)


def weights_of(model: Checkpoint, *, vllm: str, towers: bool, fp8_online: bool = False) -> Weights:
    """Return a checkpoint's weights as that release keeps them.

    `fp8_online`: quantized to FP8 while loading, one byte for each number of a linear layer.
    """
    sizes = dict.fromkeys(("decoder", "experts", "embeddings", "lm_head", "per-layer", "towers"), 0)
    for tensor, nbytes in _kept(model, vllm, towers):
        place = _place(tensor)
        sizes[place] += nbytes // 2 if fp8_online and _linear(tensor, place) else nbytes
    text = model.text
    return Weights(
        decoder=sizes["decoder"],
        experts=sizes["experts"],
        embeddings=sizes["embeddings"],
        head=0 if text.tied_embeddings else sizes["lm_head"],
        per_layer=sizes["per-layer"],
        towers=sizes["towers"],
        rotary=rotary_tables(text),
        experts_share=text.experts_per_token / text.experts if text.experts else 0.0,
        head_of_a_token=_head_of_a_token(model, sizes["embeddings"]),
    )


def _head_of_a_token(model: Checkpoint, table: int) -> int | None:
    """Return the bytes that a token reads of a small assistant's head: the rows of the best centroids.

    Gemma4MTPMaskedEmbedder in vllm/model_executor/models/gemma4_mtp.py, from 0.21.0, with its defaults.
    """
    if model.config.get("use_ordered_embeddings") is not True:
        return None
    centroids, best = model.config.get("num_centroids", 2048), model.config.get("centroid_intermediate_top_k", 32)
    if not isinstance(centroids, int) or not isinstance(best, int) or not 0 < best <= centroids:
        return None
    return table * best // centroids


def rotary_tables(text: TextModel) -> int:
    """Return the bytes of cosines and sines in bfloat16, shared by the layers of one kind (get_rope's cache)."""
    widths = {layer.kind: layer.head_dim for layer in text.layers}
    return 2 * text.max_position_embeddings * sum(widths.values())


def _kept(model: Checkpoint, vllm: str, towers: bool) -> Iterator[tuple[Tensor, int]]:
    """Yield the tensors that stay in memory, with their size.

    vllm/model_executor/models/gemma4.py: where keys are values, the key projection is loaded into both places. Keys
    and values of layers that share another's cache are loaded up to 0.29, and left out from 0.30.0 on.
    """
    leaves_out = Version(vllm) >= Version("0.30.0")
    casts = model.dtype in ("bfloat16", "float16")
    for tensor in model.tensors:
        if not towers and part_of(tensor.name) in _TOWERS:
            continue
        layer = _decoder_layer(model, tensor)
        if casts and tensor.dtype == "F32" and len(tensor.shape) > 1 and tensor.name.endswith("weight"):
            yield tensor, tensor.nbytes // 2  # copied into a parameter of the model's own type
        elif layer is None:
            yield tensor, tensor.nbytes
        elif leaves_out and layer.shares_with is not None and any(part in tensor.name for part in _KEYS_AND_VALUES):
            continue
        elif layer.keys_are_values and _KEYS in tensor.name:
            yield tensor, 2 * tensor.nbytes
        else:
            yield tensor, tensor.nbytes


def _decoder_layer(model: Checkpoint, tensor: Tensor) -> Layer | None:
    if part_of(tensor.name) != "decoder layers":
        return None
    match = _LAYER.search(tensor.name)
    index = int(match[1]) if match else -1
    return model.text.layers[index] if 0 <= index < len(model.text.layers) else None


def _place(tensor: Tensor) -> str:
    part = part_of(tensor.name)
    if part in _TOWERS:
        return "towers"
    if part == "per-layer embeddings":
        return "per-layer"
    if part in ("embeddings", "lm_head"):
        return part
    return "experts" if _EXPERTS.search(tensor.name) else "decoder"


def _linear(tensor: Tensor, place: str) -> bool:
    """Return whether quantizing while loading changes it: 16-bit matrices of the decoder."""
    return place in ("decoder", "experts") and len(tensor.shape) > 1 and tensor.dtype in _SIXTEEN_BITS


HELD: Final = 8320 * 2**20
"""Bytes that a GPU held in addition to the weights at the peak of loading: 6.5 to 8.1 GiB for a 31B in NVFP4,
alone, with its tower, and with an E2B, on an H200 with 0.26.0. Smaller models and other formats were not measured."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Target and draft, and whether each is quantized to FP8 while loading."""

    target: Checkpoint
    draft: Checkpoint | None
    target_fp8: bool = False
    draft_fp8: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """One profile on one machine. Sizes are in bytes, lengths in tokens."""

    models: Models
    flags: Flags
    device: Device

    @cached_property
    def target(self) -> Weights:
        """The target in memory."""
        model, fp8 = self.models.target, self.models.target_fp8
        return weights_of(model, vllm=self.flags.vllm, towers=self.flags.towers, fp8_online=fp8)

    @cached_property
    def draft(self) -> Weights | None:
        """The draft in memory. Its towers are loaded too: vLLM builds the whole model."""
        model, fp8 = self.models.draft, self.models.draft_fp8
        return weights_of(model, vllm=self.flags.vllm, towers=True, fp8_online=fp8) if model else None

    @cached_property
    def overheads(self) -> tuple[Overhead, ...]:
        """Everything else that must fit besides the cache."""
        return overheads(self.models.target, self.models.draft, self.flags, self.device)

    @property
    def weights(self) -> int:
        """Bytes of both models on one GPU."""
        total = self.target.total + (self.draft.total if self.draft else 0)
        return -(-total // self.flags.tensor_parallel)

    @property
    def loading(self) -> int:
        """Peak bytes while loading: with a draft, each model's embeddings briefly exist twice."""
        if not self.draft:
            return self.weights
        first = self.target.total + self.target.embeddings
        both = self.target.total + self.draft.total + self.draft.embeddings
        return -(-max(first, both) // self.flags.tensor_parallel)

    @property
    def held(self) -> int | None:
        """Peak bytes that the GPU may hold while loading, including memory freed but kept by torch; None on a CPU."""
        return None if self.device.cpu else self.weights + HELD

    @property
    def requested(self) -> int:
        """gpu_memory_utilization of the total memory, which vLLM requires to be free when it starts."""
        return math.ceil(self.device.memory * self.flags.utilization)

    @property
    def item(self) -> Item | None:
        """The image or video that a batch must hold whole, if any."""
        sees = sees_images(self.models.target, self.flags) and self.flags.whole_items
        return largest_item(self.flags.media) if sees else None

    @property
    def available(self) -> int:
        """Memory left for the KV cache: "Available KV cache memory" in the log. Can be negative."""
        if self.flags.cpu_cache is not None:
            return self.flags.cpu_cache
        return self.requested - self.weights - sum(overhead.nbytes for overhead in self.overheads)

    @cached_property
    def layers(self) -> tuple[Owned, ...]:
        """Every layer with its own cache, the target's first."""
        layers = list(self._caches(self.models.target, "target", self.flags.cache_dtype))
        if self.models.draft:
            layers += self._caches(self.models.draft, "draft", self.flags.draft_cache_dtype)
        return tuple(layers)

    def _caches(self, model: Checkpoint, role: str, dtype: str) -> Iterator[Owned]:
        return layer_caches(
            model.text,
            role=role,
            rules=kv_rules(self.flags.vllm, cpu=self.device.cpu),
            block_size=self.flags.block_size,
            dtype=dtype,
            tensor_parallel=self.flags.tensor_parallel,
        )

    @cached_property
    def cache(self) -> KvCache:
        """The KV cache. Raises Unplannable if vLLM fails before it checks the memory."""
        rules = kv_rules(self.flags.vllm, cpu=self.device.cpu)
        groups = groups_of(self.layers, rules, hybrid=self.flags.hybrid, joins_windows=self.flags.joins_windows)
        return KvCache(groups=tuple(groups), rules=rules, in_flight=self.flags.in_flight)

    @property
    def longest(self) -> int:
        """The largest max_model_len with which the server starts, up to the target's maximum."""
        return self.cache.longest(self.available, self.models.target.text.max_position_embeddings)

    @property
    def longest_for_all(self) -> int:
        """The largest max_model_len with which max_num_seqs requests fit."""
        limit = self.models.target.text.max_position_embeddings
        return self.cache.longest(self.available, limit, self.flags.max_num_seqs)

    def problems(self) -> list[str]:
        """Yield why the server would not start."""
        wrong = [*self._too_few_gpus(), *self._crowding()]
        wrong += self._too_heavy()
        wrong += self._too_small_a_batch()
        try:
            cache = self.cache
        except Unplannable as error:
            return [*wrong, str(error)]
        if self.available <= 0:
            wrong.append(f"nothing is left for the KV cache: {gib(-self.available)} are missing")
        elif not cache.starts_with(self.available, self.flags.max_model_len):
            needed, left = cache.request_bytes(self.flags.max_model_len), cache.usable(self.available)
            length = self.flags.max_model_len
            wrong.append(f"one request of {length:,} tokens needs {gib(needed)} of KV cache, but {gib(left)} are left")
        return wrong

    def _too_few_gpus(self) -> Iterator[str]:
        """Yield a problem if there are too few GPUs (ParallelConfig in vllm/config/parallel.py, every release)."""
        wanted, each, nodes = self.flags.tensor_parallel, self.device.gpus, self.flags.nodes
        if not self.device.cpu and each is not None and wanted > each * nodes:
            has = f"{each} GPU{'s' if each > 1 else ''}"
            have = f"{self.device.name} has {has}" if nodes == 1 else f"{nodes} machines with {has} each have fewer"
            yield f"tensor_parallel_size {wanted} needs {wanted} GPUs, and {have}; nodes: N is for several machines"

    def _too_heavy(self) -> Iterator[str]:
        free = self.device.memory if self.device.free is None else self.device.free
        if not self.device.cpu and self.loading > free:
            yield f"loading takes {gib(self.loading)}, but the machine has {gib(free)}"

    def _too_small_a_batch(self) -> Iterator[str]:
        item, batch = self.item, self.flags.max_num_batched_tokens
        if item and item.tokens > batch:
            yield (
                f"one {item.modality} takes {item.tokens:,} tokens, but a batch of {batch:,} cannot hold it: the start "
                'fails with "Chunked MM input disabled"'
            )

    def _crowding(self) -> Iterator[str]:
        """Yield a problem if too little memory is free, as far as it is known."""
        free, wanted = self.device.free, self.flags.cpu_cache or self.requested
        if free is None or free >= wanted:
            return
        share = f"gpu_memory_utilization {self.flags.utilization:g}"
        why = "VLLM_CPU_KVCACHE_SPACE" if self.flags.cpu_cache else share
        yield (
            f"{gib(free)} of {gib(self.device.memory)} are free now, but vLLM requires {gib(wanted)} "
            f"({why}) at the start"
        )


def parts(plan: MemoryPlan) -> list[tuple[str, int]]:
    """Return what fills the memory of one GPU, in bytes, and what stays free; parts of no size are left out.

    Together they are more than the memory where the profile does not fit.
    """
    gpus = plan.flags.tensor_parallel
    graphs = sum(overhead.nbytes for overhead in plan.overheads if overhead.name == "CUDA graphs")
    uses = [
        ("weights", plan.target.total // gpus),
        ("draft", plan.draft.total // gpus if plan.draft else 0),
        ("cache", max(0, plan.available)),
        ("graphs", graphs),
        ("other", sum(overhead.nbytes for overhead in plan.overheads) - graphs),
    ]
    free = plan.device.memory - sum(nbytes for _, nbytes in uses)
    return [(name, nbytes) for name, nbytes in (*uses, ("free", free)) if nbytes > 0]
