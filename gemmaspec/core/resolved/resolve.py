"""What vLLM will do with a profile, asked once. `resolve` is the way in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.sizes import Size, size_called
from gemmaspec.core.profile.command import Command, asked_of_runner, command_of, compile_of, vllm_of
from gemmaspec.core.profile.device import Device, device_of
from gemmaspec.core.profile.graphs import GraphModes, graph_modes
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.parallel import parallel_of
from gemmaspec.core.releases import model_runner
from gemmaspec.core.releases.drafting import method_run, shortens
from gemmaspec.core.releases.facts import Facts, facts_near, newest
from gemmaspec.core.releases.model_runner import RunnerInput, RunnerName
from gemmaspec.core.resolved import media as taken
from gemmaspec.core.resolved import memory
from gemmaspec.core.resolved.answer import Unknown, both
from gemmaspec.core.resolved.attention import Attention
from gemmaspec.core.resolved.lengths import Lengths, lengths_of
from gemmaspec.core.resolved.media import Media, Tower
from gemmaspec.core.resolved.stages import PARTITION, Started, batches_in_flight, layers_by_stage, why_not_in_stages
from gemmaspec.core.rows import Parallel


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """One profile under one release on one machine, with its checkpoints if they were read.

    Each answer is vLLM's own, as far as it is known; an `Unknown` says why it is not. All are computed once.
    """

    profile: Profile
    facts: Facts
    """Of the release, or of the nearest known one."""
    vllm: str
    """The release that runs, as it is called: it may be an unknown build."""
    device: Device
    target: Checkpoint | None = None
    draft: Checkpoint | None = None

    @cached_property
    def command(self) -> Command:
        """The server's command line."""
        return command_of(self.profile, self.facts.flags)

    @cached_property
    def size(self) -> Size | None:
        """The size that the target's name says."""
        return size_called(_name(self.profile.target.model))

    @cached_property
    def method(self) -> str | None:
        """The method that vLLM drafts with; None without speculation."""
        spec, draft = self.profile.speculative, self.profile.draft
        head = self.draft.speculator if self.draft else None
        return method_run(
            spec.method if spec else None,
            self.vllm,
            head=head.method if head else None,
            called=_name(draft.model) if draft and self.draft is None else None,
        )

    @property
    def asked_method(self) -> str | None:
        """The method that the profile names; None without speculation."""
        return self.profile.speculative.method if self.profile.speculative else None

    @property
    def tokens(self) -> int:
        """num_speculative_tokens; 0 without a method. suffix defaults to the depth of its trees, 24."""
        spec = self.profile.speculative
        if not spec:
            return 0
        return spec.num_speculative_tokens or spec.suffix_decoding_max_tree_depth or 24

    @cached_property
    def mixture(self) -> bool | Unknown:
        """Whether the target is a mixture of experts."""
        if self.target:
            return self.target.text.experts > 0
        if self.size:
            return self.size.experts
        return Unknown("its name says no size")

    @cached_property
    def runner_input(self) -> RunnerInput:
        """What decides the model runner; a target of an unknown kind counts as dense."""
        forced = self.profile.env.get("VLLM_USE_V2_MODEL_RUNNER")
        return RunnerInput(
            mixture=self.mixture is True,
            triton=not self.device.cpu,
            forced=model_runner.forced_by(forced),
            method=self.method,
            stages=self.command.number("--pipeline-parallel-size") or 1,
            options=asked_of_runner(self.profile, self.command, self.facts.runner_unsupported),
        )

    @cached_property
    def runner(self) -> RunnerName:
        """The model runner that will run."""
        return model_runner.runs(self.facts.runner, self.runner_input)

    @cached_property
    def falls_back(self) -> str | None:
        """Why vLLM uses model runner v1 instead of v2; None if it uses v2."""
        return model_runner.falls_back(self.facts.runner, self.runner_input)

    @cached_property
    def media(self) -> Media | Unknown:
        """What a request may hold besides text."""
        return taken.media_of(self.command, self.target, self.size)

    @property
    def images(self) -> bool | Unknown:
        """Whether a request may hold images or videos."""
        if isinstance(self.media, Unknown):
            return self.media
        return bool(self.media & taken.SEEN)

    @cached_property
    def masks(self) -> bool | Unknown:
        """Whether images are masked, so that their tokens see later ones."""
        return taken.masks_of(self.vllm, self.media, self.target, self.size)

    @cached_property
    def whole_items(self) -> bool | Unknown:
        """Whether a batch must hold a whole image or video."""
        return taken.whole_items_of(self.vllm, self.command, masks=self.masks, media=self.media, cpu=self.device.cpu)

    @property
    def towers(self) -> frozenset[Tower]:
        """The encoders of the target that are loaded."""
        if self.target:
            unified = self.target.model_type == "gemma4_unified"
        else:
            unified = bool(self.size and self.size.unified)
        return taken.towers_of(self.media, unified=unified)

    @cached_property
    def _lengths(self) -> Lengths:
        return lengths_of(
            self.command,
            self.vllm,
            target=self.target,
            size=self.size,
            device=self.device,
            whole_items=self.masks is not False,
        )

    @property
    def length(self) -> int | Unknown:
        """max_model_len, in tokens; a draft may shorten the target's."""
        length, spec = self._lengths.length, self.profile.speculative
        if isinstance(length, Unknown) or self.draft is None or spec is None:
            return length
        if not shortens(self.method, self.vllm, self.runner):
            return length
        return min(length, spec.max_model_len or self.draft.text.max_position_embeddings)

    @property
    def batch(self) -> int | Unknown:
        """max_num_batched_tokens."""
        return self._lengths.batch

    @property
    def sequences(self) -> int | Unknown:
        """max_num_seqs."""
        return self._lengths.sequences

    @cached_property
    def cache(self) -> str | Unknown:
        """The number format of the target's KV cache, as vLLM calls it."""
        asked = self.command.value("--kv-cache-dtype")
        return cache_format(asked, self.command.value("--dtype"), self.target)

    @cached_property
    def draft_cache(self) -> str | Unknown:
        """The number format of the draft's KV cache; the target's, unless the profile says another."""
        spec = self.profile.speculative
        if spec is None or not spec.kv_cache_dtype:
            return self.cache
        return cache_format(spec.kv_cache_dtype, self.command.value("--dtype"), self.draft)

    @cached_property
    def caches_fp8(self) -> bool | Unknown:
        """Whether the KV cache is FP8."""
        if isinstance(self.cache, Unknown):
            return self.cache
        return self.cache.startswith("fp8")

    @cached_property
    def attention(self) -> Attention:
        """What decides the attention backends."""
        return Attention(
            profile=self.profile,
            command=self.command,
            vllm=self.facts.vllm,
            capability=self.device.capability,
            method=self.method,
            mixture=self.runner_input.mixture,
            runner=self.runner,
            masks=both(self.masks),
            fp8=both(self.caches_fp8),
        )

    @cached_property
    def backend(self) -> str | Unknown:
        """The attention backend of the target."""
        return self.attention.backend("target")

    @cached_property
    def draft_backend(self) -> str | Unknown | None:
        """The attention backend of the draft; None without a second model."""
        if self.profile.draft:
            return self.attention.backend("draft")
        return None

    @cached_property
    def graphs(self) -> GraphModes | Unknown:
        """The CUDA graphs of target and draft."""
        if self.device.cpu:
            return Unknown("without a GPU there are none")
        modes = graph_modes(
            self.profile,
            self.command,
            self.facts,
            method=self.method,
            runner=self.runner,
            capability=self.device.capability,
            layers=self.attention.layers(),
        )
        return modes or Unknown(f"vLLM {self.facts.vllm} was not asked about such a server")

    @property
    def compile(self) -> str:
        """How the server compiles, in the words of measured rows: `eager`, `disabled`, `default`, or what flags say."""
        return compile_of(self.profile, self.command)

    @cached_property
    def parallel(self) -> Parallel:
        """How the server is spread over GPUs."""
        return parallel_of(self.profile, self.command)

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.parallel.pipeline

    @property
    def layers_by_stage(self) -> tuple[range, ...] | Unknown:
        """The target's decoder layers of each stage. Raises BadPartition if VLLM_PP_LAYER_PARTITION does not fit."""
        if self.target is None:
            return Unknown("the checkpoint was not read")
        return layers_by_stage(len(self.target.text.layers), self.stages, self.profile.env.get(PARTITION))

    @property
    def not_in_stages(self) -> str | None:
        """Why it cannot be served in the stages that the profile asks for; None if it can, or has one stage."""
        if self.stages == 1:
            return None
        if self.target:
            shares = any(layer.shares_with is not None for layer in self.target.text.layers)
        else:
            shares = bool(self.size and self.size.shares_kv)
        compiles = self.compile not in ("eager", "disabled")
        asked = Started(
            vllm=self.vllm,
            method=self.method,
            runner=self.runner,
            shares_kv=shares,
            cpu=self.device.cpu,
            compiles=compiles,
        )
        return why_not_in_stages(asked)

    @property
    def batches(self) -> int:
        """How many batches may be in flight."""
        return batches_in_flight(self.stages, self.runner, asynchronous=self.asynchronous)

    @property
    def nodes(self) -> int:
        """How many machines have the GPUs: `nodes` of the profile, or --nnodes."""
        return max(self.profile.nodes, self.command.number("--nnodes") or 1)

    @property
    def asynchronous(self) -> bool:
        """Whether scheduling is asynchronous, so that two batches are in flight."""
        return memory.asynchronous(self.command, self.profile.speculative, self.vllm, cpu=self.device.cpu)

    @property
    def share(self) -> float | Unknown:
        """gpu_memory_utilization."""
        return memory.share_of(self.command, self.vllm)

    @property
    def given_cache(self) -> int | Unknown | None:
        """The bytes of the KV cache that the profile sets; None where vLLM takes what is left."""
        return memory.given_cache_of(self.command, self.profile.env, cpu=self.device.cpu)

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches that the profile lists."""
        return (*self.profile.patches.required, *self.profile.patches.optional)

    @property
    def hybrid(self) -> bool:
        """Whether the hybrid KV cache manager is on, which is vLLM's default for Gemma 4."""
        asked = self.command.switched("--disable-hybrid-kv-cache-manager")
        if asked is None and "LMCache" in (self.command.value("--kv-transfer-config") or ""):
            return False  # a connector without SupportsHMA turns it off (vllm/config/vllm.py)
        return not asked


def resolved_of(
    profile: Profile,
    *,
    vllm: str | None = None,
    facts: Facts | None = None,
    device: Device | None = None,
    target: Checkpoint | None = None,
    draft: Checkpoint | None = None,
) -> Resolved:
    """Return what vLLM does with a profile.

    `vllm`: the release; None for the one that the profile states, or else the newest known one. `facts`: its facts,
    where they are at hand. `device`: the machine; None for the profile's.
    """
    release = vllm or vllm_of(profile) or newest()
    return Resolved(
        profile=profile,
        facts=facts or facts_near(release),
        vllm=release,
        device=device or device_of(MACHINES[profile.machine]),
        target=target,
        draft=draft,
    )


def cache_format(asked: str | None, dtype: str | None, model: Checkpoint | None) -> str | Unknown:
    """Return a KV cache's number format: the requested one, else the checkpoint's, else the model's own."""
    if asked not in (None, "auto"):
        return str(asked)
    if model is None:
        return Unknown("kv_cache_dtype is auto, and the checkpoint was not read")
    if model.quantization:
        declared = model.quantization.kv_cache
    else:
        declared = None
    if declared and "fp8" in declared.lower():
        return "fp8"
    if dtype in (None, "auto"):
        return model.dtype
    return str(dtype)


def _name(model: str) -> str:
    """Return the last part of a model's id or folder: what it is called, without whose or where it is."""
    return model.rstrip("/").rpartition("/")[2]
