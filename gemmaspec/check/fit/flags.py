"""The flags of a profile, with vLLM's defaults for missing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from gemmaspec.check.fit.kvspec import known_cache_dtypes, kv_rules
from gemmaspec.core.checkpoint.parts import Checkpoint
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.command import Command, asked_of_runner, command_of
from gemmaspec.core.profile.device import GIB, Device
from gemmaspec.core.profile.graphs import graph_modes
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases import model_runner
from gemmaspec.core.releases.batch import (
    BatchDefaults,
    Modality,
    batch_defaults,
    default_batch,
    raised_for_images,
    wants_whole_items,
)
from gemmaspec.core.releases.drafting import method_run, shortens
from gemmaspec.core.releases.facts import facts_for, nearest
from gemmaspec.core.releases.model_runner import RunnerInput, RunnerName, runner_for

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
    "--kv-cache-memory-bytes",
    "--kv-cache-memory",
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
    eager: bool
    towers: bool
    """Whether the target's image and audio encoders are loaded."""
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
    defaults: tuple[str, ...] = ()
    """Flags whose value is vLLM's own default."""

    @property
    def in_flight(self) -> int:
        """Tokens that may be in flight."""
        batches = self.batches if kv_rules(self.vllm).batches_in_flight else 1
        return batches * self.max_num_batched_tokens


def flags_of(profile: Profile, target: Checkpoint, draft: Checkpoint | None, *, vllm: str, device: Device) -> Flags:
    """Return the flags of a profile for one release and machine.

    Raises UsageError for a flag whose effect is not computed here.
    """
    command = _command(profile, vllm)
    _refuse(profile, command)
    serve, spec = profile.serve, profile.speculative
    length = serve.max_model_len or target.text.max_position_embeddings
    defaults = _batch_defaults(profile, vllm, device)
    sequences = serve.max_num_seqs or defaults.sequences
    towers = not (serve.language_model_only or _no_media(profile))
    batch = serve.max_num_batched_tokens or default_batch(
        defaults.tokens,
        vllm=vllm,
        length=length,
        sequences=sequences,
        masks=raised_for_images(vllm, masks=target.wants_whole_images, serves_images=towers),
        chunked=serve.enable_chunked_prefill is not False,
    )
    assert batch, "the length is known"
    cache_dtype = cache_dtype_of(serve.kv_cache_dtype, serve.dtype, target)
    draft_dtype = cache_dtype
    if draft and spec and spec.kv_cache_dtype:
        draft_dtype = cache_dtype_of(spec.kv_cache_dtype, serve.dtype, draft)
    runner = model_runner.runs(runner_for(vllm), _runner_input(profile, command, target, draft, vllm, device))
    if draft and spec and shortens(spec.method, vllm, runner):
        length = min(length, spec.max_model_len or draft.text.max_position_embeddings)
    return Flags(
        vllm=vllm,
        graphs=_graphs(profile, target, vllm, device, fp8=cache_dtype.startswith("fp8")),
        block_size=serve.block_size or kv_rules(vllm, cpu=device.cpu).default_block,
        max_model_len=length,
        max_num_seqs=serve.max_num_seqs or min(sequences, batch),
        max_num_batched_tokens=batch,
        cache_dtype=cache_dtype,
        draft_cache_dtype=draft_dtype,
        hybrid=not serve.disable_hybrid_kv_cache_manager,
        joins_windows=JOINS_WINDOWS in (*profile.patches.required, *profile.patches.optional),
        batches=2 if _asynchronous(profile, command, vllm, device) else 1,
        tensor_parallel=serve.tensor_parallel_size or 1,
        nodes=max(profile.nodes, _number(command.value("--nnodes"))),
        method=spec.method if spec else None,
        draft_tokens=(spec.num_speculative_tokens or 0) if spec else 0,
        utilization=serve.gpu_memory_utilization or (0.92 if Version(vllm) >= Version("0.20.0") else 0.9),
        cpu_cache=_cpu_cache(profile.env) if device.cpu else None,
        eager=bool(serve.enforce_eager),
        towers=towers,
        media=dict(serve.limit_mm_per_prompt or {}),
        moe_backend=command.value("--moe-backend"),
        runner=runner,
        whole_items=_whole_items(command, target, vllm, device),
        defaults=tuple(_defaults(profile)),
    )


def _graphs(profile: Profile, target: Checkpoint, vllm: str, device: Device, *, fp8: bool) -> str:
    modes = graph_modes(profile, vllm, capability=device.capability, fp8=fp8, masks=target.masks_images)
    return modes.target if modes else "FULL_AND_PIECEWISE"


def _command(profile: Profile, vllm: str) -> Command:
    facts = facts_for(nearest(vllm))
    return command_of(profile, facts.flags if facts else {})


def _runner_input(
    profile: Profile, command: Command, target: Checkpoint, draft: Checkpoint | None, vllm: str, device: Device
) -> RunnerInput:
    spec = profile.speculative
    head = draft.speculator.method if draft and draft.speculator else None
    facts = facts_for(nearest(vllm))
    return RunnerInput(
        mixture=target.text.experts > 0,
        triton=not device.cpu,
        forced=model_runner.forced_by(profile.env.get("VLLM_USE_V2_MODEL_RUNNER")),
        method=method_run(spec.method if spec else None, vllm, head=head, called=None),
        options=asked_of_runner(profile, command, facts.runner_unsupported if facts else frozenset()),
    )


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


def cache_dtype_of(wanted: str | None, dtype: str | None, model: Checkpoint) -> str:
    """Return the cache's number format: the requested one, else the checkpoint's, else the model's own.

    Raises UsageError for one whose size is not known.
    """
    chosen = wanted or "auto"
    declared = model.quantization.kv_cache if model.quantization else None
    if chosen == "auto":
        stated = dtype if dtype not in (None, "auto") else model.dtype
        chosen = "fp8" if declared and "fp8" in declared.lower() else str(stated)
    if chosen not in known_cache_dtypes():
        raise UsageError(f"fit does not know the size of a KV cache of {chosen}")
    return chosen


def _batch_defaults(profile: Profile, vllm: str, device: Device) -> BatchDefaults:
    world = (profile.serve.tensor_parallel_size or 1) * (profile.serve.pipeline_parallel_size or 1)
    return batch_defaults(
        vllm, memory=device.memory, name=device.name, capability=device.capability, cpu=device.cpu, world=world
    )


def _whole_items(command: Command, target: Checkpoint, vllm: str, device: Device) -> bool:
    asked = bool(command.switched("--disable-chunked-mm-input"))
    return asked or (target.wants_whole_images and wants_whole_items(vllm, cpu=device.cpu))


def _asynchronous(profile: Profile, command: Command, vllm: str, device: Device) -> bool:
    """Return whether it is on (vllm/config/vllm.py): unless the method forbids it; not on a CPU (platforms/cpu.py)."""
    wanted = command.switched("--async-scheduling")
    if device.cpu or wanted is not None:
        return not device.cpu and bool(wanted)
    spec = profile.speculative
    if spec is None:
        return True
    unable = {"suffix"} if Version(vllm) >= Version("0.33.0") else {"suffix", "ngram"}
    return spec.method not in unable and not spec.disable_padded_drafter_batch


def _number(text: str | None) -> int:
    """Return a number of machines; 1 if it is missing or not a number."""
    return int(text) if text and re.fullmatch(r"[1-9][0-9]{0,3}", text) else 1


def _cpu_cache(env: Mapping[str, str]) -> int | None:
    space = env.get("VLLM_CPU_KVCACHE_SPACE", "")
    return int(space) * GIB if space.isdigit() and int(space) else None


def _no_media(profile: Profile) -> bool:
    limits = profile.serve.limit_mm_per_prompt
    return limits is not None and limits.get("image") == limits.get("video") == limits.get("audio") == 0


_WITH_DEFAULT: Final = _COUNTED[:6]


def _defaults(profile: Profile, names: Iterable[str] = _WITH_DEFAULT) -> Iterator[str]:
    return (name for name in names if getattr(profile.serve, name) is None)
