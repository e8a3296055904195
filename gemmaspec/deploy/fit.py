"""`fit`: from a profile to whether it fits, on the machine it names or on another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from gemmaspec import data
from gemmaspec.deploy.lockfile import release_of
from gemmaspec.deploy.requested import asked_release
from gemmaspec.errors import EnvironmentMissing, UsageError
from gemmaspec.fit.advice import advice
from gemmaspec.fit.flags import flags_of
from gemmaspec.fit.machine import GB, Device, named
from gemmaspec.fit.overhead import gib
from gemmaspec.fit.plan import MemoryPlan, Models
from gemmaspec.fit.report import Fit
from gemmaspec.fit.roofline import roofline
from gemmaspec.lint.check import check
from gemmaspec.machine.device import this_cpu, this_gpu
from gemmaspec.patching.patch import Shelf
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Draft, Profile, Target
from gemmaspec.releases.gemma4 import attention_for
from gemmaspec.stack.paths import is_local

if TYPE_CHECKING:
    from gemmaspec.checkpoint.model import Checkpoint

HERE = "here"


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """What is asked."""

    profile: str
    overrides: Sequence[str] = ()
    no_spec: bool = False
    release: str | None = None
    """The vLLM to ask about, when not the profile's."""
    machine: str | None = None
    """A known machine, or `here`; the profile's when not given."""
    memory_gb: float | None = None
    """10^9 bytes, instead of what the machine has."""
    context: int = 1024
    """Tokens in the cache while the speed is computed."""
    concurrency: int = 1


def fit(request: FitRequest) -> Fit:
    """Answer it. Reads configurations and headers of the models, no weight.

    Raises EnvironmentMissing for a model that is neither here nor to be reached.
    """
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    profile = loaded.profile
    vllm, notes = _release(loaded, request.release)
    plan = _plan(profile, vllm, request)
    models = plan.models
    measured = tuple(profile.measured)
    return Fit(
        profile=profile.name,
        plan=plan,
        problems=tuple(plan.problems()),
        advice=tuple(advice(plan)),
        roofline=roofline(plan, measured, context=request.context, concurrency=request.concurrency),
        measured=measured,
        notes=(*notes, *_from_shapes(models), *_refused(loaded, vllm, models), *_notes(plan)),
    )


def plan_of(loaded: Loaded) -> MemoryPlan:
    """Return what a profile's models take on its machine, without lint and without advice.

    A published model that is not here is told by its shapes, so that nobody is asked. Raises as `fit` does.
    """
    vllm, _ = _release(loaded, None)
    return _plan(loaded.profile, vllm, FitRequest(profile=loaded.profile.name), shapes=True)


def _plan(profile: Profile, vllm: str, request: FitRequest, *, shapes: bool = False) -> MemoryPlan:
    models = _models(profile, shapes=shapes)
    device = _device(profile, request)
    flags = flags_of(profile, models.target, models.draft, vllm=vllm, device=device)
    return MemoryPlan(models, flags, device)


def _release(loaded: Loaded, asked: str | None) -> tuple[str, list[str]]:
    """The vLLM to compute for, and what is to be said about it. Raises UsageError for one without Gemma 4."""
    from gemmaspec.releases.facts import nearest, newest, releases

    vllm = asked_release(asked) if asked else release_of(loaded)
    if vllm:
        if Version(vllm) < Version(releases()[0]):
            raise UsageError(f"vLLM {vllm} has no Gemma 4; the first release that has it is {releases()[0]}")
        known = nearest(vllm)
        return vllm, [] if Version(vllm).public == known else [f"vLLM {vllm} is not known; computed as {known}"]
    vllm, image = newest(), loaded.profile.image
    return vllm, [f"the tag of {image} does not say which vLLM it holds; taken for {vllm}, --for says another"]


def _refused(loaded: Loaded, vllm: str, models: Models) -> Iterator[str]:
    """What stops the start whatever the memory is."""
    found = check(
        loaded,
        patches=Shelf(data.patch_folders()),
        asked=vllm,
        target=models.target,
        draft=models.draft,
        notes=False,
    )
    for one in found:
        if one.severity == "error":
            yield f"it would not start: {one.code}: {one.message}; {one.fix}"


def _models(profile: Profile, *, shapes: bool) -> Models:
    draft = profile.draft
    return Models(
        target=_open(profile, "target", profile.target, shapes=shapes),
        draft=_open(profile, "draft", draft, shapes=shapes) if draft else None,
        target_fp8=profile.target.quantization == "fp8",
        draft_fp8=bool(draft and draft.quantization == "fp8"),
    )


def _from_shapes(models: Models) -> Iterator[str]:
    """Which models nobody could be asked about."""
    from gemmaspec.checkpoint.published.shipped import shipped_for

    for role, model in (("target", models.target), ("draft", models.draft)):
        if model and model.source == "shipped" and (known := shipped_for(model.ref)):
            yield f"{role}: {known.says}; {known.source}"


def _open(profile: Profile, role: str, model: Target | Draft, *, shapes: bool) -> Checkpoint:
    """What is on this machine first, so that an answer needs no network; then the Hub, by range requests.

    With `shapes`, the shapes that ship with gemmaspec come before the Hub; else after it.
    """
    from gemmaspec.deploy.models import TINY, hub_cache
    from gemmaspec.models.hub import Unreachable

    cache = hub_cache(profile)
    fetch = f"gemmaspec pull {profile.name}    # with a network; from then on fit needs none"
    try:
        found = _nearest(model, cache, shapes=shapes)
        if not found.tensors:
            raise EnvironmentMissing(f"of {model.model} no weight file is here, and how large they are is not known")
        return found
    except EnvironmentMissing as error:
        if is_local(model.model):  # nothing fetches a folder
            makes = model.model.startswith(TINY)
            hint = "gemmaspec demo    # makes the tiny pair" if makes else f"ls -d {model.model}"
        else:
            hint = fetch if isinstance(error, Unreachable) else error.hint or fetch
        raise EnvironmentMissing(f"{role}.model: {error.message}", hint=hint) from None


def _nearest(model: Target | Draft, cache: Path | None, *, shapes: bool) -> Checkpoint:
    from gemmaspec.models.open import open_checkpoint

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


def _device(profile: Profile, request: FitRequest) -> Device:
    device = _found(request.machine or profile.machine)
    if request.memory_gb is None:
        if device.memory:
            return device
        raise EnvironmentMissing(
            f"the profile is for any machine with NVIDIA GPUs, and nvidia-smi finds none here ({device.name})",
            hint="--set machine=NAME    # fit also takes --machine NAME, or --memory GB",
        )
    return dataclasses.replace(device, memory=round(request.memory_gb * GB), free=None)


def _found(name: str) -> Device:
    """A machine by name; with the numbers of this one where it is such a machine."""
    if name == HERE:
        return this_gpu() or this_cpu()
    if name not in MACHINES:
        raise UsageError(f"--machine is {', '.join((*MACHINES, HERE))}, not {name!r}")
    if not MACHINES[name].gpus:
        return this_cpu()
    known, here = named(MACHINES[name]), this_gpu()
    if known is None:
        return here or Device(name=name, memory=0)
    if here and here.capability == known.capability:
        return dataclasses.replace(here, name=known.name, bandwidth=known.bandwidth)
    return known


def _shared_memory(plan: MemoryPlan) -> Iterator[str]:
    yield (
        "CPU and GPU share this memory: vLLM takes its share of all of it, and at the start MemAvailable must be "
        "that large; the page cache counts as available, other programs do not"
    )
    yield (
        "leave room beside that share: after answering, a server held 0.8 to 1.4 GiB more than it, 1.6 GiB with 256 "
        "sequences (an H200, vLLM 0.26.0, eager)"
    )
    free = plan.device.memory if plan.device.free is None else plan.device.free
    if plan.held is not None and plan.held > free:
        yield f"while loading it may hold {gib(plan.held)}, and {gib(free)} are free: other programs may be pushed out"


def _notes(plan: MemoryPlan) -> list[str]:
    """What a reader of the numbers should know."""
    found: list[str] = []
    if plan.device.unified:
        found += _shared_memory(plan)
    flash = plan.device.major in attention_for(plan.flags.vllm).flash_attention_on
    if flash and (plan.device.major > 9 or plan.flags.cache_dtype.startswith("fp8")):
        found.append("FlashAttention may choose larger blocks here; computed with those of Triton's kernels")
    if plan.flags.tensor_parallel > 1:
        found.append("weights are taken to divide evenly over the GPUs, and each to have the memory named here")
    if plan.models.target.missing_files or (plan.models.draft and plan.models.draft.missing_files):
        found.append("weight files are missing: the weights are larger than counted here")
    return found
