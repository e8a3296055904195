"""Memory that is neither weights nor KV cache: activations, compiling, CUDA graphs. Estimates all, with their formulas.

vLLM measures these while it starts (Worker.determine_available_memory): one batch of max_num_batched_tokens through the
model. What is computed here are the tensors that are alive at the peak, held against 34 starts of vLLM 0.26.0 on an
H200 with models of full size (tests/data/memory-h200-0.26.0.json; docs/explanations/measured-memory.md has the errors).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from packaging.version import Version

from gemmaspec.check.fit.demand import Demand
from gemmaspec.check.fit.images import encoding, sees_images
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.quantization import WEIGHT_ONLY
from gemmaspec.core.checkpoint.stored import part_of
from gemmaspec.core.profile.device import GIB, Device

_LOGITS_BYTES: Final = 6
"""For each sampled token and word of the vocabulary: logits in bfloat16 and in float32. With 256 requests at once
sampling did not reach the peak of a batch of 2,048 tokens, which bounds this by 5.4."""
_NATIVE_SAMPLER_BYTES: Final = 14
"""The same for each request up to 0.20: logits in bfloat16 and in float32, probabilities, and as many random numbers
(forward_native and random_sample in v1/sample/ops/topk_topp_sampler.py; FlashInfer samples by default from 0.21 on)."""
_BASE: Final = 12 * 2**20
"""Minimum bytes of a pass, however few tokens it has."""
_OUTSIDE: Final = 240 * 2**20
"""Bytes of libraries in addition to torch once the model is loaded."""
_GRAPHS: Final = (30 * 10**6, 16 * 10**6)
"""Bytes for all captured batch sizes, and for each."""
_CPU_RUNTIME: Final = 584 * 2**20
"""Python, torch and vLLM in one worker process: 0.57 GiB in the log of 0.32.0 with the tiny pair."""
_LARGEST_GRAPH: Final = 512
HEADS: Final = ("mtp", "eagle", "eagle3", "dflash", "dspark")
"""Methods whose drafts run in graphs of their own under runner v2 (gpu/spec_decode/, init_cudagraph_manager)."""
_REPACKED: Final = 0.18
"""What packed 4-bit experts took beyond their stored bytes once Marlin's kernels had them: 2.14 and 2.18 GiB in two
published loads of the 26B-A4B, whose experts are 11.97 GiB, if their GB are the log's GiB (0.92 and 0.80 GiB if not).

No code explains it: prepare_nvfp4_moe_layer_for_marlin in marlin_utils_fp4.py (every release) pads experts of 704 by
nothing, its workspace is four numbers for each multiprocessor, and what it repacks from is freed layer by layer."""


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Bytes, and their formula."""

    name: str
    nbytes: int
    formula: str
    reserved: bool = True
    """Whether vLLM leaves room for it; else it comes on top of gpu_memory_utilization."""


def overheads(target: Checkpoint, draft: Checkpoint | None, demand: Demand, device: Device) -> tuple[Overhead, ...]:
    """Return bytes that the KV cache must leave free."""
    if device.cpu:
        return (Overhead(name="runtime", nbytes=_CPU_RUNTIME, formula="Python, torch and vLLM in the worker"),)
    models = [model for model in (target, draft) if model]
    estimates = [activations(models, demand, device)]
    if kept := draft_logits(target, demand):
        estimates.append(kept)
    if not demand.eager:
        estimates.append(compiling(models, demand, estimates[0].nbytes))
    estimates.append(Overhead(name="libraries", nbytes=_OUTSIDE, formula="in addition to torch's own memory"))
    if demand.graphs != "NONE" and not demand.eager and Version(demand.vllm) >= Version("0.21.0"):
        estimates.append(replace(graphs(demand, device), reserved=reserves_graphs(demand)))
    if marlin_experts(target, demand, device):
        estimates.append(repacked(target, demand))
    return tuple(estimates)


def marlin_experts(target: Checkpoint, demand: Demand, device: Device) -> bool:
    """Return whether Marlin computes 4-bit experts: if requested, for weight-only formats, or without FP4 cores."""
    if target.quantization:
        algorithm = target.quantization.algorithm or ""
    else:
        algorithm = ""
    if not target.text.experts or not algorithm.endswith("NVFP4"):
        return False
    if demand.moe_backend not in (None, "auto"):
        return demand.moe_backend == "marlin"
    return algorithm == WEIGHT_ONLY or 0 < device.major < 10


def repacked(target: Checkpoint, demand: Demand) -> Overhead:
    """Return the bytes of Marlin's form of the experts in addition to their stored size, per GPU."""
    stored = sum(tensor.nbytes for tensor in target.tensors if ".experts." in tensor.name)
    formula = f"{_REPACKED:g} x the experts' stored bytes: what published loads took more under Marlin"
    return Overhead(name="experts", nbytes=round(stored * _REPACKED) // demand.tensor_parallel, formula=formula)


def activations(models: list[Checkpoint], demand: Demand, device: Device) -> Overhead:
    """Return the largest of a full batch in either model, sampling for all requests, and images in the tower.

    It is not their sum, because profile_run encodes the images before the batch and keeps only their embeddings.
    """
    tokens = demand.max_num_batched_tokens
    sampled = min(demand.max_num_seqs, tokens) * profiled_rows(demand)
    words = models[0].text.vocab_size
    peaks = [_pass(model, demand) for model in models]
    heads = 2 if samples_twice(demand) else 1
    twice = " for the target and its head" if heads == 2 else ""
    formula = f"{_LOGITS_BYTES} bytes x {sampled:,} tokens x {words:,} words{twice}"
    peaks.append((_LOGITS_BYTES * sampled * words * heads, formula))
    if Version(demand.vllm) < Version("0.21.0"):
        each, requests = _NATIVE_SAMPLER_BYTES, min(demand.max_num_seqs, tokens)
        peaks.append((each * requests * words, f"{each} bytes x {requests:,} requests x {words:,} words"))
    if sees_images(models[0], demand) and (profiled := encoding(models[0], demand, device)):
        peaks.append(profiled)
    nbytes, formula = max(peaks)
    return Overhead(name="activations", nbytes=nbytes + _BASE, formula=formula)


def profiled_rows(demand: Demand) -> int:
    """Return for how many tokens of each request vLLM samples while it measures its peak.

    Runner v2 samples one (_dummy_run's logits_indices in v1/worker/gpu/model_runner.py), and v1 tries its rejection
    sampler with one drafted token (_dummy_sampler_run in v1/worker/gpu_model_runner.py), from 0.25.1: both far
    fewer than the k+1 of a request that drafts.
    """
    if demand.runner == "v1" and demand.draft_tokens:
        return 2
    return 1


def full_step(models: list[Checkpoint], demand: Demand, profiled: int) -> Overhead | None:
    """Return what a step needs beyond the `profiled` peak where every request drafts; None where that is enough."""
    if not demand.draft_tokens:
        return None
    rows, words = min(demand.max_num_seqs, demand.max_num_batched_tokens), models[0].text.vocab_size
    tokens = demand.draft_tokens + (2 if samples_twice(demand) else 1)
    beyond = _LOGITS_BYTES * rows * tokens * words + _BASE - profiled
    if beyond <= 0:
        return None
    formula = f"{_LOGITS_BYTES} bytes x {rows:,} requests x {tokens} tokens x {words:,} words"
    return Overhead(name="full step", nbytes=beyond, formula=formula)


def draft_logits(target: Checkpoint, demand: Demand) -> Overhead | None:
    """Return what runner v2 keeps of every drafted token's distribution with draft_sample_method: probabilistic.

    draft_logits in v1/worker/gpu/spec_decode/speculator.py: float32 up to 0.27, the head's own type from 0.28.0 on,
    and float32 for DFlash 2.
    """
    if not demand.keeps_draft_logits or demand.runner != "v2" or not demand.draft_tokens:
        return None
    wide = Version(demand.vllm) < Version("0.28.0") or demand.method == "dflash"
    each, words = (4 if wide else 2), target.text.vocab_size
    nbytes = each * demand.max_num_seqs * demand.draft_tokens * words
    formula = (
        f"{each} bytes x {demand.max_num_seqs:,} requests x {demand.draft_tokens} drafted tokens x {words:,} words"
    )
    return Overhead(name="draft logits", nbytes=nbytes, formula=formula)


def _pass(model: Checkpoint, demand: Demand) -> tuple[int, str]:
    """Return bfloat16 numbers per token: residual and attention, three times the inner layer, per-layer inputs."""
    text, tokens = model.text, demand.max_num_batched_tokens
    per_layer = 3 * len(text.layers) * text.hidden_size_per_layer_input
    inner = 3 * widest(model) // demand.tensor_parallel
    width = 4 * text.hidden_size + inner + per_layer
    return 2 * tokens * width, f"2 bytes x {tokens:,} tokens x (4 hidden + 3 inner + 3 per-layer = {width:,})"


def widest(model: Checkpoint) -> int:
    """Return the width of the widest feed-forward layer."""
    return max(model.text.inner(layer) for layer in model.text.layers)


def compiling(models: list[Checkpoint], demand: Demand, profiled: int) -> Overhead:
    """Return the bytes that a compiling start needs beyond the `profiled` peak.

    It has a second copy of a model's largest embedding table for a moment, and takes it for needed; a start that finds
    its code in the cache has not. The embeddings of a target that sees images are computed outside of what is compiled.
    """
    if sees_images(models[0], demand):
        inside = models[1:]
    else:
        inside = models
    most = profiled
    for model in inside:
        most = max(most, _BASE + _table(model, demand.tensor_parallel) + _pass(model, demand)[0])
    formula = "first start only: a copy of the largest embedding table; a start from the compile cache does not need it"
    return Overhead(name="compiling", nbytes=most - profiled, formula=formula)


def _table(model: Checkpoint, gpus: int) -> int:
    tables = [tensor.nbytes for tensor in model.tensors if "embeddings" in part_of(tensor.name)]
    return max(tables, default=0) // gpus


def graphs(demand: Demand, device: Device) -> Overhead:
    """Return the bytes of CUDA graphs, one per batch size; part of gpu_memory_utilization since 0.21.0.

    What was fitted are graphs of whole decoding steps; those in pieces are taken to need as much for a size.
    """
    number, (base, each) = graph_sizes(demand, device), _GRAPHS
    pieces = " in pieces" if demand.graphs == "PIECEWISE" else ""
    captured = 2 if captures_head(demand) else 1
    if captured == 2:
        twice = ", for the target and for its head"
    else:
        twice = ""
    formula = f"30 MB + 16 MB x {number} batch sizes{pieces}{twice}"
    return Overhead(name="CUDA graphs", nbytes=captured * (base + number * each), formula=formula)


def reserves_graphs(demand: Demand) -> bool:
    """Return whether vLLM leaves the graphs' memory out of the cache (profile_cudagraph_memory).

    Model runner v1 does from 0.21.0 on. Runner v2 answers 0 up to 0.28.0 (v1/worker/gpu/model_runner.py), and measures
    them from 0.29.0 on (v1/worker/gpu/cudagraph_utils.py).
    """
    return demand.runner != "v2" or Version(demand.vllm) >= Version("0.29.0")


def captures_head(demand: Demand) -> bool:
    """Return whether runner v2 captures a head's steps as it does the target's; they are taken to need as much."""
    return demand.runner == "v2" and demand.method in HEADS and demand.graphs.startswith("FULL")


def samples_twice(demand: Demand) -> bool:
    """Return whether runner v2 also samples with the head while it measures its peak (propose in _dummy_run).

    That this adds as much as the target's sampling follows from two published servers of 0.25.1 with an MTP head and
    1,024 requests: 343,435 tokens of cache on an H100 and 872,503 on an H200. No code says so.
    """
    return demand.runner == "v2" and demand.method in HEADS and demand.draft_tokens > 0


def graph_sizes(demand: Demand, device: Device) -> int:
    """Return how many batch sizes are captured (vllm/config/vllm.py, _set_cudagraph_sizes).

    Graphs of a whole step are for whole requests. In pieces all sizes are captured, from 0.29.0 on also whole requests.
    """
    each, vllm = demand.draft_tokens + 1, Version(demand.vllm)
    most = _LARGEST_GRAPH * (2 if device.major == 10 and vllm >= Version("0.28.0") else 1)
    largest = min(demand.max_num_seqs * each * 2, most, demand.max_num_batched_tokens)
    plain = {size for size in _grid(largest) if size <= largest}
    if demand.graphs != "PIECEWISE":
        return len({-(-size // each) * each for size in plain})
    requests = min(demand.max_num_seqs, most)
    counts = _grid(requests) | {requests}
    whole = {count * each for count in counts if count * each <= largest}
    return len(plain | whole if each > 1 and vllm >= Version("0.29.0") else plain)


def _grid(most: int) -> set[int]:
    return {1, 2, 4} | set(range(8, min(most + 1, 256), 8)) | set(range(256, most + 1, 16))


def gib(nbytes: float) -> str:
    """Return bytes as vLLM's log writes them."""
    return f"{nbytes / GIB:.2f} GiB"
