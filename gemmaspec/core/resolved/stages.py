"""Which layers each pipeline stage has, and what of a Gemma 4 vLLM cannot serve in stages. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from gemmaspec.core.releases.model_runner import RunnerName

PARTITION: Final = "VLLM_PP_LAYER_PARTITION"
_READ_HIDDEN_STATES: Final = ("eagle3", "dflash", "dspark")
_OWN_STAGES: Final = Version("0.30.0")
"""From here on a draft's configuration has one stage (create_draft_parallel_config in vllm/config/speculative.py)."""


class BadPartition(ValueError):
    """VLLM_PP_LAYER_PARTITION does not divide the layers."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """What of a start decides whether it can be in stages."""

    vllm: str
    method: str | None
    """The method that vLLM drafts with."""
    runner: RunnerName
    shares_kv: bool
    """Whether layers of the target read the KV cache of others, as in E2B and E4B."""
    cpu: bool
    compiles: bool
    """Whether the server compiles its model."""


def layers_by_stage(layers: int, stages: int, partition: str | None = None) -> tuple[range, ...]:
    """Return the decoder layers of each stage (get_pp_indices in vllm/distributed/utils.py, every release).

    `partition`: VLLM_PP_LAYER_PARTITION. Raises BadPartition if it does not divide the layers.
    """
    if partition is None:
        counts = [layers // stages] * stages
        for place in range(2, layers % stages + 2):
            counts[-place] += 1
    else:
        counts = _counts(partition, layers, stages)
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


def _counts(partition: str, layers: int, stages: int) -> list[int]:
    words = [word.strip() for word in partition.split(",")]
    if not all(word.isdecimal() for word in words):
        raise BadPartition(f"{partition[:40]!r} is not a list of numbers such as 28,32")
    counts = [int(word) for word in words]
    if len(counts) != stages:
        raise BadPartition(f"names {len(counts)} stages, and there are {stages}")
    if sum(counts) != layers:
        raise BadPartition(f"has {sum(counts)} layers, and the target has {layers}")
    return counts


def why_not_in_stages(start: Started) -> str | None:
    """Return why a Gemma 4 does not start in several stages, or answers wrongly; None if nothing is known against it.

    vLLM 0.32.0 was run with two stages on a CPU; the code of eight releases was read, the first
    and the newest among them.
    """
    if start.shares_kv:
        # Gemma4ForConditionalGeneration.forward passes per-layer inputs on where it has inputs_embeds, which later
        # stages have not; Attention refuses a layer that shares the cache of one on another stage
        return (
            "an E2B or E4B is not served in stages: later ones leave its per-layer embeddings out, so that it answers "
            "nonsense, and a layer that shares the KV cache of one on another stage ends the start"
        )
    if start.method and (because := _why_not_with(start.method, start.vllm)):
        return because
    if start.method and start.runner == "v1":
        # GPUModelRunner.__init__ in v1/worker/gpu_model_runner.py makes it on the last rank; _build_attention_metadata
        # and initialize_kv_cache_tensors ask every rank for it
        return f"under model runner v1 {start.method} is on the last stage alone, and the first asks for it in vain"
    if start.cpu and not start.compiles:
        # warming_up_model in v1/worker/cpu_model_runner.py, which alone allocates intermediate_tensors
        return "on a CPU the second stage fails with the first request (AssertionError), because nothing is compiled"
    return None


def _why_not_with(method: str, vllm: str) -> str | None:
    if method == "mtp" and Version(vllm) < _OWN_STAGES:
        return f"vLLM {vllm} gives the draft the same stages, but the MTP head cannot be split into stages"
    if method == "mtp":
        # _share_embeddings in v1/worker/gpu/spec_decode/gemma4/speculator.py, _maybe_share_embeddings in
        # v1/spec_decode/gemma4.py: only where get_pp_group().world_size is 1
        return "the MTP head multiplies the target's embeddings, and vLLM gives them to it only without stages"
    if method in _READ_HIDDEN_STATES:
        # supports_aux_hidden_states_over_pp, which Gemma4Model has not; up to 0.29 GPUModelRunner refuses, or counts
        # the layers of each stage from 0
        return f"{method} reads hidden states of layers of several stages, and Gemma 4 does not pass them on in vLLM"
    if method == "draft_model":
        return (
            "the draft's layers are cut by the target's stages, although the last stage alone drafts: it fails while "
            "the server starts"
        )
    return None


def batches_in_flight(stages: int, runner: RunnerName, *, asynchronous: bool) -> int:
    """Return how many batches may be in flight (max_concurrent_batches in vllm/config/vllm.py, from 0.25.0).

    With stages runner v1 schedules synchronously (the same file).
    """
    if asynchronous and (runner == "v2" or stages == 1):
        return stages + 1
    return stages
