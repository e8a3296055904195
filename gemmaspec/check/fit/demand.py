"""What a server demands of the memory: the answers of Resolved that decide it, all of them known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gemmaspec.check.fit.kvspec import known_cache_dtypes, kv_rules
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.items import Modality
from gemmaspec.core.releases.model_runner import RunnerName
from gemmaspec.core.resolved.answer import Unknown, known
from gemmaspec.core.resolved.media import Tower
from gemmaspec.core.resolved.resolve import Resolved
from gemmaspec.core.resolved.stages import PARTITION, BadPartition

N = TypeVar("N", int, float)
JOINS_WINDOWS: Final = "kv-spec-uniform-valueerror"
"""The patch that lets one KV cache group hold two sliding windows."""
_NOT_MODELLED: Final = (
    "--kv-cache-dtype-skip-layers",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
    "--kv-transfer-config",
    "--cpu-offload-gb",
    "--performance-mode",
    "--enable-chunked-prefill",
    "--num-gpu-blocks-override",
    "--compilation-config",
    "--limit-mm-per-prompt",
    "--skip-mm-profiling",
)
"""Flags whose effect on memory is not computed here."""

_COUNTED: Final = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "block_size",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enforce_eager",
    "disable_hybrid_kv_cache_manager",
    "language_model_only",
)
_WITH_KEY: Final = {f"--{name.replace('_', '-')}": f"serve.{name}" for name in _COUNTED} | {
    "--quantization": "target.quantization", "--max-model-len": "serve.max_model_len, a number",
}  # fmt: skip
"""Flags that matter here, and the keys they are read from."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Everything but the models and the machine that the memory depends on, as numbers to compute with.

    `Resolved` may not know an answer; here each is known, and advice computes what another figure would save. Lengths
    are in tokens.
    """

    resolved: Resolved = field(compare=False)
    """What vLLM makes of the profile as it is written; the figures below are its own until advice varies them."""
    vllm: str
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    cache_dtype: str
    draft_cache_dtype: str
    hybrid: bool
    joins_windows: bool
    batches: int
    """Batches that may be in flight."""
    tensor_parallel: int
    stages: tuple[range, ...]
    """The target's decoder layers of each pipeline stage; one range of all of them without stages."""
    nodes: int
    """Number of machines with the GPUs (`nodes`, or --nnodes)."""
    method: str | None
    draft_tokens: int
    """Draft tokens per step; 0 without speculation."""
    utilization: float
    """gpu_memory_utilization."""
    cpu_cache: int | None
    """VLLM_CPU_KVCACHE_SPACE, in bytes."""
    given_cache: int | None
    """--kv-cache-memory-bytes of a GPU: the size of its KV cache, for which vLLM then measures nothing
    (Worker.determine_available_memory in vllm/v1/worker/gpu_worker.py, 0.32.0)."""
    eager: bool
    towers: frozenset[Tower]
    """The encoders of the target that are loaded."""
    media: Mapping[Modality, int]
    """limit_mm_per_prompt, if given."""
    whole_items: bool
    """Whether a batch must hold a whole image or video."""
    runner: RunnerName
    """The model runner that will run."""
    graphs: str = "FULL_AND_PIECEWISE"
    """The mode of the target's CUDA graphs, as vLLM resolves it."""
    moe_backend: str | None = None
    """Requested kernels of the experts."""
    keeps_draft_logits: bool = False
    """draft_sample_method: probabilistic, for which the distribution of every drafted token is kept."""
    defaults: tuple[str, ...] = ()
    """Flags whose value is vLLM's own default."""

    @property
    def in_flight(self) -> int:
        """Tokens that may be in flight."""
        if kv_rules(self.vllm).batches_in_flight:
            batches = self.batches
        else:
            batches = 1
        return batches * self.max_num_batched_tokens


def demand_of(resolved: Resolved) -> Demand:
    """Return what a profile's server demands.

    Raises UsageError for an answer that is not known, and for a flag whose effect is not computed here.
    """
    profile, device, vllm = resolved.profile, resolved.device, resolved.vllm
    _refuse(profile, resolved.command)
    serve, spec, graphs = profile.serve, profile.speculative, known(resolved.graphs)
    length = _needed(resolved.length, "max_model_len")
    sequences = _needed(resolved.sequences, "max_num_seqs")
    batch = _needed(resolved.batch, "max_num_batched_tokens")
    share = _needed(resolved.share, "gpu_memory_utilization")
    cache = _sized(resolved.cache)
    draft_cache = _sized(resolved.draft_cache if resolved.draft else resolved.cache)
    given_cache = _read(resolved.given_cache)
    # one number with two meanings: on a CPU the whole cache, on a GPU what vLLM then measures nothing for
    cpu_cache = given_cache if device.cpu else None
    gpu_cache = None if device.cpu else given_cache
    keeps_logits = bool(spec and spec.draft_sample_method == "probabilistic")
    return Demand(
        resolved=resolved,
        vllm=vllm,
        graphs=graphs.target if graphs else Demand.graphs,
        block_size=serve.block_size or kv_rules(vllm, cpu=device.cpu).default_block,
        max_model_len=length,
        max_num_seqs=sequences,
        max_num_batched_tokens=batch,
        cache_dtype=cache,
        draft_cache_dtype=draft_cache,
        hybrid=resolved.hybrid,
        joins_windows=JOINS_WINDOWS in resolved.patches,
        batches=resolved.batches,
        tensor_parallel=resolved.parallel.tensor,
        stages=_stages(resolved),
        nodes=resolved.nodes,
        method=resolved.asked_method,
        draft_tokens=resolved.tokens,
        utilization=share,
        cpu_cache=cpu_cache,
        given_cache=gpu_cache,
        eager=bool(serve.enforce_eager),
        towers=resolved.towers,
        media=dict(serve.limit_mm_per_prompt or {}),
        moe_backend=resolved.command.value("--moe-backend"),
        keeps_draft_logits=keeps_logits,
        runner=resolved.runner,
        whole_items=resolved.whole_items is True,
        defaults=tuple(_defaults(profile)),
    )


def _stages(resolved: Resolved) -> tuple[range, ...]:
    """Return the layers of each stage. Raises UsageError for a partition that does not divide them."""
    try:
        found = resolved.layers_by_stage
    except BadPartition as error:
        raise UsageError(f"env.{PARTITION} {error}") from None
    if isinstance(found, Unknown):
        raise UsageError(f"fit needs the layers of each stage, which are not known: {found.because}")
    return found


def _read(answer: int | Unknown | None) -> int | None:
    """Return a number that may be missing. Raises UsageError for one that cannot be read."""
    if isinstance(answer, Unknown):
        raise UsageError(answer.because)
    return answer


def _needed(answer: N | Unknown, name: str) -> N:
    if isinstance(answer, Unknown):
        raise UsageError(f"fit needs {name}, which is not known: {answer.because}")
    return answer


def _sized(cache: str | Unknown) -> str:
    """Return a format whose size is known. Raises UsageError for another."""
    if isinstance(cache, Unknown) or cache not in known_cache_dtypes():
        if isinstance(cache, Unknown):
            named = cache.because
        else:
            named = cache
        raise UsageError(f"fit does not know the size of a KV cache of {named}")
    return cache


def _refuse(profile: Profile, command: Command) -> None:
    given = {argument.flag for argument in command.arguments if argument.written}
    if with_key := sorted(given & set(_WITH_KEY)):
        keys = ", ".join(f"{flag} as {_WITH_KEY[flag]}" for flag in with_key)
        raise UsageError(f"fit reads the keys of a profile, not serve.extra_args: write {keys}")
    unknown = sorted(given & set(_NOT_MODELLED))
    if profile.env.get("VLLM_KV_CACHE_LAYOUT", "NHD") not in ("NHD", "HND", "LBNHC", "LBHNC"):
        unknown.append("env.VLLM_KV_CACHE_LAYOUT")
    if unknown:
        raise UsageError(f"fit cannot compute the effect of these on memory: {', '.join(unknown)}")


_WITH_DEFAULT: Final = _COUNTED[:6]


def _defaults(profile: Profile, names: Iterable[str] = _WITH_DEFAULT) -> Iterator[str]:
    return (name for name in names if getattr(profile.serve, name) is None)
