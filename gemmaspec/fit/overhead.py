"""Memory that is neither weights nor KV cache: activations, CUDA graphs, what CUDA itself takes. Estimates all.

vLLM measures these while it starts (Worker.determine_available_memory): it runs one batch of max_num_batched_tokens,
then samples for max_num_seqs requests. What is written here follows the tensors that are alive at the peak of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from gemmaspec.checkpoint.model import Checkpoint, TextModel
from gemmaspec.fit.flags import Flags
from gemmaspec.fit.machine import GIB, Device

_SAMPLER_BYTES: Final = 22
"""For each token and word of the vocabulary: logits in bfloat16 (2) and float32 (4), sorted (4) with their places (8),
and probabilities (4)."""
_CONTEXT: Final = 600 * 2**20
"""CUDA context, cuBLAS and attention workspaces of one process."""
_GRAPH: Final = 24 * 2**20
"""One captured batch size of one model."""
_CPU_RUNTIME: Final = 584 * 2**20
"""Python, torch and vLLM in one worker process: 0.57 GiB in the log of 0.32.0 with the tiny pair."""
_LARGEST_GRAPH: Final = 512


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes, and how they come about."""

    name: str
    nbytes: int
    formula: str


def overheads(target: Checkpoint, draft: Checkpoint | None, flags: Flags, device: Device) -> tuple[Estimate, ...]:
    """All of it that the KV cache has to leave room for."""
    if device.cpu:
        return (Estimate(name="runtime", nbytes=_CPU_RUNTIME, formula="Python, torch and vLLM in the worker"),)
    found = [activations(target.text, flags), Estimate(name="CUDA", nbytes=_CONTEXT, formula="context and workspaces")]
    if flags.towers and "image" in target.modalities:
        found.append(_encoder_cache(target.text, flags))
    if not flags.eager and Version(flags.vllm) >= Version("0.21.0"):
        found.append(graphs(flags, drafts=draft is not None))
    return tuple(found)


def activations(text: TextModel, flags: Flags) -> Estimate:
    """The larger of one full batch through a layer, and sampling for every request at once."""
    tokens, words = flags.max_num_batched_tokens, text.vocab_size
    sampled = min(flags.max_num_seqs, tokens) * (flags.draft_tokens + 1)
    per_layer = 2 * len(text.layers) * text.hidden_size_per_layer_input
    width = 4 * text.hidden_size + 3 * text.intermediate_size // flags.tensor_parallel + per_layer
    forward, sampling = 2 * tokens * width, sampled * words * _SAMPLER_BYTES
    if forward >= sampling:
        formula = f"2 bytes x {tokens} tokens x (4 hidden + 3 intermediate + per-layer inputs = {width})"
        return Estimate(name="activations", nbytes=forward, formula=formula)
    formula = f"{_SAMPLER_BYTES} bytes x {sampled} sampled tokens x {words} words"
    return Estimate(name="activations", nbytes=sampling, formula=formula)


def graphs(flags: Flags, *, drafts: bool) -> Estimate:
    """CUDA graphs, one for each batch size; counted against gpu_memory_utilization from 0.21.0 on."""
    number = graph_sizes(flags) * (2 if drafts else 1)
    return Estimate(name="CUDA graphs", nbytes=number * _GRAPH, formula=f"24 MiB x {number} captured batch sizes")


def graph_sizes(flags: Flags) -> int:
    """How many batch sizes are captured (vllm/config/vllm.py, _set_cudagraph_sizes)."""
    largest = min(flags.max_num_seqs * (flags.draft_tokens + 1) * 2, _LARGEST_GRAPH, flags.max_num_batched_tokens)
    sizes = {size for size in (1, 2, 4) if size <= largest}
    return len(sizes | set(range(8, min(largest + 1, 256), 8)) | set(range(256, largest + 1, 16)))


def _encoder_cache(text: TextModel, flags: Flags) -> Estimate:
    nbytes = 2 * flags.max_num_batched_tokens * text.hidden_size
    formula = f"2 bytes x {flags.max_num_batched_tokens} tokens x hidden {text.hidden_size}"
    return Estimate(name="image cache", nbytes=nbytes, formula=formula)


def gib(nbytes: float) -> str:
    """Bytes as people and vLLM's log write them."""
    return f"{nbytes / GIB:.2f} GiB"
