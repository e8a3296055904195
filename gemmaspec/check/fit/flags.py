"""The flags of a profile, with vLLM's defaults for missing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from gemmaspec.check.fit.kvspec import known_cache_dtypes, kv_rules
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.device import GIB, Device
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.items import Modality
from gemmaspec.core.releases.model_runner import RunnerName
from gemmaspec.core.resolved.answer import Unknown, known
from gemmaspec.core.resolved.media import Tower
from gemmaspec.core.resolved.resolve import resolved_of

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
class Flags:
    """Everything but the models and the machine that the memory depends on. Lengths are in tokens."""

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
    """Batches in flight: 2 with asynchronous scheduling."""
    tensor_parallel: int
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


def flags_of(profile: Profile, target: Checkpoint, draft: Checkpoint | None, *, vllm: str, device: Device) -> Flags:
    """Return the flags of a profile for one release and machine.

    Raises UsageError for a flag whose effect is not computed here.
    """
    resolved = resolved_of(profile, vllm=vllm, device=device, target=target, draft=draft)
    _refuse(profile, resolved.command)
    serve, spec, command = profile.serve, profile.speculative, resolved.command
    return Flags(
        vllm=vllm,
        graphs=modes.target if (modes := known(resolved.graphs)) else "FULL_AND_PIECEWISE",
        block_size=serve.block_size or kv_rules(vllm, cpu=device.cpu).default_block,
        max_model_len=_needed(resolved.length, "max_model_len"),
        max_num_seqs=_needed(resolved.sequences, "max_num_seqs"),
        max_num_batched_tokens=_needed(resolved.batch, "max_num_batched_tokens"),
        cache_dtype=_sized(resolved.cache),
        draft_cache_dtype=_sized(resolved.draft_cache if draft else resolved.cache),
        hybrid=resolved.hybrid,
        joins_windows=JOINS_WINDOWS in resolved.patches,
        batches=2 if _asynchronous(profile, command, vllm, device) else 1,
        tensor_parallel=serve.tensor_parallel_size or 1,
        nodes=max(profile.nodes, _number(command.value("--nnodes"))),
        method=spec.method if spec else None,
        draft_tokens=(spec.num_speculative_tokens or 0) if spec else 0,
        utilization=serve.gpu_memory_utilization or (0.92 if Version(vllm) >= Version("0.20.0") else 0.9),
        cpu_cache=_cpu_cache(profile.env) if device.cpu else None,
        given_cache=None if device.cpu else _given_cache(command),
        eager=bool(serve.enforce_eager),
        towers=resolved.towers,
        media=dict(serve.limit_mm_per_prompt or {}),
        moe_backend=command.value("--moe-backend"),
        keeps_draft_logits=bool(spec and spec.draft_sample_method == "probabilistic"),
        runner=resolved.runner,
        whole_items=resolved.whole_items is True,
        defaults=tuple(_defaults(profile)),
    )


def _needed(answer: int | Unknown, name: str) -> int:
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
    if (profile.serve.pipeline_parallel_size or 1) > 1:
        unknown.append("serve.pipeline_parallel_size")
    if profile.env.get("VLLM_KV_CACHE_LAYOUT", "NHD") not in ("NHD", "HND", "LBNHC", "LBHNC"):
        unknown.append("env.VLLM_KV_CACHE_LAYOUT")
    if unknown:
        raise UsageError(f"fit cannot compute the effect of these on memory: {', '.join(unknown)}")


def _asynchronous(profile: Profile, command: Command, vllm: str, device: Device) -> bool:
    """Return whether it is on (vllm/config/vllm.py): unless the method forbids it; not on a CPU (platforms/cpu.py)."""
    wanted = command.switched("--async-scheduling")
    if device.cpu or wanted is not None:
        return not device.cpu and bool(wanted)
    spec = profile.speculative
    if spec is None:
        return True
    if Version(vllm) >= Version("0.33.0"):
        unable = {"suffix"}
    else:
        unable = {"suffix", "ngram"}
    return spec.method not in unable and not spec.disable_padded_drafter_batch


def _number(text: str | None) -> int:
    """Return a number of machines; 1 if it is missing or not a number."""
    if text and re.fullmatch(r"[1-9][0-9]{0,3}", text):
        return int(text)
    return 1


_UNITS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _given_cache(command: Command) -> int | None:
    """Return the bytes of --kv-cache-memory-bytes, with vLLM's units (human_readable_int). Raises UsageError."""
    text = command.value("--kv-cache-memory-bytes") or command.value("--kv-cache-memory")
    if text is None:
        return None
    number = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([kmgKMG]?)", text)
    if number is None:
        raise UsageError(f"--kv-cache-memory-bytes {text[:40]!r} is not a number of bytes, such as 2700M")
    return int(float(number[1]) * _UNITS.get(number[2], 1))


def _cpu_cache(env: Mapping[str, str]) -> int | None:
    space = env.get("VLLM_CPU_KVCACHE_SPACE", "")
    if space.isdigit() and int(space):
        return int(space) * GIB
    return None


_WITH_DEFAULT: Final = _COUNTED[:6]


def _defaults(profile: Profile, names: Iterable[str] = _WITH_DEFAULT) -> Iterator[str]:
    return (name for name in names if getattr(profile.serve, name) is None)
