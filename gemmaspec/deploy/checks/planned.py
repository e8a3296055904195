"""The memory that the models of a profile need on its machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from gemmaspec.deploy.kept.lockfile import release_of
from gemmaspec.errors import EnvironmentMissing, UsageError
from gemmaspec.fit.flags import flags_of
from gemmaspec.fit.machine import GB, Device, named
from gemmaspec.fit.memory_plan import MemoryPlan, Models
from gemmaspec.machine.device import this_cpu, this_gpu
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.machines import HERE, MACHINES
from gemmaspec.profile.meant import unknown_machine
from gemmaspec.profile.model import Draft, Profile, Target
from gemmaspec.releases.facts import asked_release
from gemmaspec.stack.paths import is_local

if TYPE_CHECKING:
    from gemmaspec.checkpoint.parts import Checkpoint


def plan_of(loaded: Loaded) -> MemoryPlan:
    """Return the memory that a profile's models need on its machine.

    A published model that is not on this machine is computed from its shapes, without the network. Raises as
    `plan_on` does.
    """
    vllm, _ = release_for(loaded, None)
    return plan_on(loaded.profile, vllm, shapes=True)


def plan_on(
    profile: Profile, vllm: str, *, machine: str | None = None, memory_gb: float | None = None, shapes: bool = False
) -> MemoryPlan:
    """Return the memory on a machine (None: the profile's) with so many 10^9 bytes (None: those of the machine).

    With `shapes`, published shapes come before the Hub. Raises EnvironmentMissing for a model that is neither here nor
    reachable, and UsageError for an unknown machine.
    """
    models = _models(profile, shapes=shapes)
    device = _device(machine or profile.machine, memory_gb)
    flags = flags_of(profile, models.target, models.draft, vllm=vllm, device=device)
    return MemoryPlan(models, flags, device)


def release_for(loaded: Loaded, asked: str | None) -> tuple[str, list[str]]:
    """Return the vLLM release to compute for, and notes on it. Raises UsageError for one without Gemma 4."""
    from gemmaspec.releases.facts import nearest, newest, releases

    vllm = asked_release(asked) if asked else release_of(loaded)
    if vllm:
        if Version(vllm) < Version(releases()[0]):
            raise UsageError(f"vLLM {vllm} does not support Gemma 4; the first release that does is {releases()[0]}")
        known = nearest(vllm)
        return vllm, [] if Version(vllm).public == known else [f"vLLM {vllm} is unknown; computed as {known}"]
    vllm, image = newest(), loaded.profile.image
    return vllm, [f"cannot tell vLLM's version from the tag of {image}; assuming {vllm} (override with --release)"]


def _models(profile: Profile, *, shapes: bool) -> Models:
    draft, target = profile.draft, _open(profile, "target", profile.target, shapes=shapes)
    return Models(
        target=target,
        draft=_open(profile, "draft", draft, shapes=shapes or target.source == "shipped") if draft else None,
        target_fp8=profile.target.quantization == "fp8",
        draft_fp8=bool(draft and draft.quantization == "fp8"),
    )


def _open(profile: Profile, role: str, model: Target | Draft, *, shapes: bool) -> Checkpoint:
    """Open a model: on this machine first, so that no network is needed; then on the Hub, by range requests.

    With `shapes`, the shapes that ship with gemmaspec come before the Hub; else after it.
    """
    from gemmaspec.deploy.kept.models import TINY, hub_cache
    from gemmaspec.models.hub import Unreachable

    cache = hub_cache(profile)
    fetch = f"gemmaspec pull {profile.name}    # needs a network once; afterwards fit does not"
    try:
        found = _nearest(model, cache, shapes=shapes)
        if not found.tensors:
            raise EnvironmentMissing(f"cannot compute the size of {model.model}: its weight files are missing")
        return found
    except EnvironmentMissing as error:
        if is_local(model.model):  # nothing fetches a folder
            makes = model.model.startswith(TINY)
            hint = "gemmaspec up tiny-cpu    # copies the tiny pair" if makes else f"ls -d {model.model}"
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


def _device(machine: str, memory_gb: float | None) -> Device:
    device = _found(machine)
    if memory_gb is None:
        if device.memory:
            return device
        raise EnvironmentMissing(
            f"the profile is for any machine with NVIDIA GPUs, and nvidia-smi finds no GPU here ({device.name})",
            hint="--set machine=NAME    # or fit's --machine NAME or --memory GB",
        )
    return dataclasses.replace(device, memory=round(memory_gb * GB), free=None)


def _found(name: str) -> Device:
    """Return a machine by name, with measured values if it is this machine."""
    if name == HERE:
        return this_gpu() or this_cpu()
    if name not in MACHINES:
        raise UsageError(f"--machine: {unknown_machine(name, [HERE])}")
    if not MACHINES[name].gpus:
        return this_cpu()
    known, here = named(MACHINES[name]), this_gpu()
    if known is None:
        return here or Device(name=name, memory=0)
    if here and here.capability == known.capability:
        return dataclasses.replace(here, name=known.name, bandwidth=known.bandwidth)
    return known
