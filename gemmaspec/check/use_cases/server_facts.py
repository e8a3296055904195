"""What decides how fast a profile's server will be, read once; the memory that its models need on its machine.

And the shipped cells that are comparable with a profile's server.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.version import Version

from gemmaspec.check.fit.demand import demand_of
from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.check.predict.comparable import Comparable, Kind, comparable_rows
from gemmaspec.core import draft_ids
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.device import GB, Device, named
from gemmaspec.core.profile.foreign_words import unknown_machine
from gemmaspec.core.profile.graphs import GraphModes
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import HERE, MACHINES, as_named
from gemmaspec.core.profile.model import Draft, Profile, Target
from gemmaspec.core.profile.replica import gpus_taken
from gemmaspec.core.releases.facts import asked_release, nearest, newest, releases
from gemmaspec.core.resolved.answer import Unknown, known
from gemmaspec.core.resolved.resolve import Resolved, resolved_of
from gemmaspec.core.rows import GRAPH_MODES, NONE, GraphMode, Setting
from gemmaspec.run.kept import measurements
from gemmaspec.run.kept.lockfile import release_of
from gemmaspec.run.kept.measurements import Taken
from gemmaspec.run.machine.readings import this_cpu, this_gpu
from gemmaspec.run.stack.paths import is_local

if TYPE_CHECKING:
    from gemmaspec.core.checkpoint.model import Checkpoint

_ONE_BYTE: Final = ("fp8", "int8_per_channel_weight_only")
"""Values of `quantization` that make one byte of each number of a linear layer while loading."""


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What decides how fast a profile's server will be, read once."""

    loaded: Loaded
    taken: Taken
    """The patches for speed that it takes."""
    known_plan: MemoryPlan | None

    @property
    def profile(self) -> Profile:
        """The profile."""
        return self.loaded.profile

    @cached_property
    def vllm(self) -> str | None:
        """The release that the profile states."""
        return vllm_of(self.profile)

    @cached_property
    def resolved(self) -> Resolved:
        """What vLLM does with it; the checkpoints are asked only where the profile leaves something to them."""
        bare = resolved_of(self.profile, vllm=self.vllm)
        hangs = isinstance(bare.cache, Unknown) or isinstance(bare.masks, Unknown)
        if not hangs and self.known_plan is None:
            return bare
        with contextlib.suppress(GemmaspecError):
            models = self.plan.models
            return resolved_of(self.profile, vllm=self.vllm, target=models.target, draft=models.draft)
        return bare

    @property
    def modes(self) -> GraphModes | None:
        """Its CUDA graphs; None where they are not known, or not of which release."""
        if self.vllm:
            return known(self.resolved.graphs)
        return None

    @property
    def backend(self) -> str | None:
        """The attention backend of the target; None where it is not known, or not of which release."""
        if self.vllm in releases():
            return known(self.resolved.backend)
        return None

    @cached_property
    def kind(self) -> Kind:
        """What its server will be, as rows describe one."""
        profile, resolved = self.profile, self.resolved
        compiled = Setting(compile=resolved.compile).graphs
        plain = profile.model_copy(update={"speculative": None, "draft": None})
        alone = resolved_of(plain, target=resolved.target)
        alone_modes = known(alone.graphs) if self.vllm else None
        graphs_alone, _ = _graphs(plain, alone_modes, compiled)
        return Kind(
            vllm=self.vllm,
            backend=self.backend,
            images=known(resolved.images) is not False,
            kv_cache=_cache(resolved),
            linear_kernel=resolved.command.value("--linear-backend"),
            compiled=compiled,
            alone=graphs_alone,
            drafting=_graphs(profile, self.modes, compiled),
            patches=frozenset(self.taken.patches),
            idle=self.taken.idle,
            parallel=resolved.parallel,
        )

    @cached_property
    def plan(self) -> MemoryPlan:
        """The memory that its models need. Published shapes come before the network. Raises as `plan_on` does."""
        return self.known_plan or plan_on(self.profile, release_for(self.loaded, None)[0], shapes=True)


def facts_of(loaded: Loaded, *, plan: MemoryPlan | None = None, shelf: Shelf | None = None) -> ServerFacts:
    """Return the facts of a profile. `plan`, `shelf`: its memory and the patches, where they are known."""
    return ServerFacts(loaded=loaded, taken=measurements.taken_by(loaded.profile, shelf), known_plan=plan)


def plan_on(
    profile: Profile, vllm: str, *, machine: str | None = None, memory_gb: float | None = None, shapes: bool = False
) -> MemoryPlan:
    """Return the memory on a machine (None: the profile's) with so many 10^9 bytes (None: those of the machine).

    With `shapes`, published shapes come before the Hub. Raises EnvironmentMissing for a model that is neither here nor
    reachable, and UsageError for an unknown machine.
    """
    models = _models(profile, shapes=shapes)
    device = _device(machine or profile.machine, memory_gb, gpus_taken(profile), profile.name)
    resolved = resolved_of(profile, vllm=vllm, device=device, target=models.target, draft=models.draft)
    return MemoryPlan(models, demand_of(resolved), device)


def release_for(loaded: Loaded, asked: str | None) -> tuple[str, list[str]]:
    """Return the vLLM release to compute for, and notes on it. Raises UsageError for one without Gemma 4."""
    vllm = asked_release(asked) if asked else release_of(loaded)
    if vllm:
        if Version(vllm) < Version(releases()[0]):
            raise UsageError(f"vLLM {vllm} does not support Gemma 4; the first release that does is {releases()[0]}")
        known = nearest(vllm)
        return vllm, [] if Version(vllm).public == known else [f"vLLM {vllm} is unknown; computed as {known}"]
    vllm, image = newest(), loaded.profile.image
    return vllm, [f"cannot tell vLLM's version from the tag of {image}; assuming {vllm} (override with --release)"]


def _models(profile: Profile, *, shapes: bool) -> Models:
    target = _open(profile, "target", profile.target, shapes=shapes)
    target_fp8 = profile.target.quantization in _ONE_BYTE
    draft = profile.draft
    if draft is None:
        return Models(target=target, draft=None, target_fp8=target_fp8, draft_fp8=False, draft_ids=None)
    return Models(
        target=target,
        draft=_open(profile, "draft", draft, shapes=shapes or target.source == "shipped"),
        target_fp8=target_fp8,
        draft_fp8=draft.quantization in _ONE_BYTE,
        draft_ids=len(draft_ids.read(draft.ids)) if draft.ids else None,
    )


def _open(profile: Profile, role: str, model: Target | Draft, *, shapes: bool) -> Checkpoint:
    """Open a model: here, else on the Hub by range requests, which comes after shipped ones with `shapes`."""
    from gemmaspec.run.kept.models import hub_cache
    from gemmaspec.run.models.hub import Unreachable

    pull = f"gemmaspec pull {profile.name}    # needs a network once; afterwards fit does not"
    try:
        checkpoint = _nearest(model, hub_cache(profile), shapes=shapes)
        if not checkpoint.tensors:
            raise EnvironmentMissing(f"cannot compute the size of {model.model}: its weight files are missing")
        return checkpoint
    except EnvironmentMissing as error:
        if isinstance(error, Unreachable):
            known = None
        else:
            known = error.hint
        hint = known or (f"ls {model.model}" if is_local(model.model) else pull)
        raise EnvironmentMissing(f"{role}.model: {error.message}", hint=hint) from None


def _nearest(model: Target | Draft, cache: Path | None, *, shapes: bool) -> Checkpoint:
    from gemmaspec.run.models.open import open_checkpoint

    try:
        here = open_checkpoint(model.model, revision=model.revision, cache_dir=cache, offline=True, shapes=shapes)
    except EnvironmentMissing:
        return open_checkpoint(model.model, revision=model.revision, cache_dir=cache)
    if (here.tensors and not here.missing_files) or is_local(model.model):
        return here
    try:
        return open_checkpoint(model.model, revision=model.revision, cache_dir=cache)
    except EnvironmentMissing:
        return here


def _device(machine: str, memory_gb: float | None, taken: Sequence[int], profile: str) -> Device:
    device = _found(machine, taken, profile)
    if memory_gb is None:
        if device.memory:
            return device
        raise EnvironmentMissing(
            f"{profile} is for any machine with NVIDIA GPUs, and nvidia-smi finds no GPU here",
            hint=f"gemmaspec fit {profile} --machine rtx-4090    # the GPU that is meant, or --memory and its GB",
        )
    return dataclasses.replace(device, memory=round(memory_gb * GB), free=None, each=())


def _found(name: str, taken: Sequence[int], profile: str) -> Device:
    """Return a machine by name, with measured values if its GPU and memory are those of this one.

    `taken`: the GPUs that the profile uses of it.
    """
    if name == HERE:
        return this_gpu(taken) or this_cpu()
    name = as_named(name)
    if name not in MACHINES:
        raise UsageError(
            f"--machine: {unknown_machine(name, [HERE])}",
            hint=f"gemmaspec fit {profile} --machine nvidia --memory 16    # another GPU, with its GB",
        )
    if not MACHINES[name].gpus:
        return this_cpu()
    known, here = named(MACHINES[name]), this_gpu(taken)
    if known is None:
        return here or Device(name=name, memory=0)
    if here and here.capability == known.capability and 0.9 < here.memory / known.memory < 1.1:
        gpus = MACHINES[name].count or here.gpus
        return dataclasses.replace(here, name=known.name, bandwidth=known.bandwidth, gpus=gpus)
    return known


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What the store says of a profile."""

    comparable: Comparable
    sources: tuple[str, ...]


def shipped_for(facts: ServerFacts) -> Shipped | None:
    """Return the rows of the store that are comparable with a server; None where none is of its machine and target."""
    profile = facts.profile
    runs = measurements.like(profile)
    method = profile.speculative.method if profile.speculative else NONE
    rows = tuple(  # once each: patches share cells
        {row.model_dump_json(): row for run in runs for row in run.rows if row.method in (method, NONE)}.values()
    )
    if not rows:
        return None
    elsewhere = [row for run in measurements.like(profile, elsewhere=True) for row in run.rows]
    comparable = comparable_rows(rows, facts.kind, elsewhere)
    named = [run.source for run in runs if any(row in comparable.measured for row in run.rows)]
    return Shipped(comparable=comparable, sources=tuple(dict.fromkeys(named or (run.source for run in runs))))


def _graphs(profile: Profile, modes: GraphModes | None, compiled: str) -> tuple[GraphMode, GraphMode | None]:
    """Return the graphs of target and draft; those of the compilation where vLLM's own answer is not known."""
    if modes:
        return GRAPH_MODES.get(modes.target, "none"), GRAPH_MODES.get(modes.draft or "")
    target = "NONE" if compiled == "eager" else "FULL"
    spec = profile.speculative
    runs_a_draft = spec and spec.method not in ("ngram", "suffix")
    return GRAPH_MODES.get(target, "none"), GRAPH_MODES.get(target) if runs_a_draft else None


def _cache(resolved: Resolved) -> str | None:
    """Return the format of the cache in the words of rows; None where it is not known."""
    cache = known(resolved.cache)
    if cache is None:
        return None
    if cache.startswith("fp8"):
        return "fp8"
    return {"bfloat16": "bf16"}.get(cache, cache)
