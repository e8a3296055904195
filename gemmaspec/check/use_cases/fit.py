"""`fit`: from a profile to whether it fits, on the machine it names or on another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.check.fit.advice import advice
from gemmaspec.check.fit.document import Fit
from gemmaspec.check.fit.link import link_of
from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.check.fit.overhead import gib
from gemmaspec.check.fit.roofline import roofline
from gemmaspec.check.use_cases.server_facts import facts_of, plan_on, release_for
from gemmaspec.core import data
from gemmaspec.core.checkpoint.ranks import is_asked
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.limits import need_room
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Measured, Profile
from gemmaspec.core.profile.replica import gpus_each
from gemmaspec.run.kept.attention import ahead_of
from gemmaspec.run.kept.measurements import of_plan, own_rows, taken_by

_IN_STAGES: Final = (
    "every stage holds the embeddings and the encoders whole, as vLLM builds a Gemma 4; only layers are divided",
    "each stage gets as many blocks of the cache as the fullest one, whose memory is shown",
    "activations and graphs of a stage are taken to be those of a whole model: none was measured",
)


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The request."""

    profile: str
    overrides: Sequence[str] = ()
    no_spec: bool = False
    release: str | None = None
    """The vLLM release to compute for; None for the profile's."""
    machine: str | None = None
    """A known machine, or `here`; None for the profile's."""
    memory_gb: float | None = None
    """Memory in 10^9 bytes; None for the machine's."""
    context: int = 1024
    """Tokens in the cache while the speed is computed."""


def fit(request: FitRequest) -> Fit:
    """Return the estimate. Reads configurations and headers of the models, no weights.

    Raises EnvironmentMissing for a model that is neither on this machine nor reachable.
    """
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    profile = loaded.profile
    vllm, notes = release_for(loaded, request.release)
    plan = plan_on(profile, vllm, machine=request.machine, memory_gb=request.memory_gb)
    models = plan.models
    measured = _published(request, profile)
    attention = ahead_of(plan.demand.resolved)
    of_plan = (*_notes(plan, attention.backends), *attention.lost)
    shelf = Shelf(data.patch_folders())
    speed, unknown = _speed(loaded, request, plan, shelf)
    refused = _refused(_on_its_machine(request, loaded), vllm, models, shelf)
    notes = [*notes, *_measured_here(loaded, shelf), *_from_shapes(models), *of_plan, *unknown]
    return Fit(
        profile=profile.name,
        plan=plan,
        problems=tuple(plan.problems()),
        refused=tuple(refused),
        advice=tuple(advice(plan)),
        roofline=roofline(plan, context=request.context),
        speed=speed,
        measured=measured,
        attention=attention.backends,
        link=link_of(plan),
        warnings=attention.lost,
        notes=tuple(notes),
    )


def _published(request: FitRequest, profile: Profile) -> tuple[Measured, ...]:
    """Return the profile's own figures; none where the request changes how many GPUs serve it."""
    if request.overrides:
        written = load_profile(request.profile).profile
    else:
        written = profile
    if gpus_each(written) == gpus_each(profile):
        return tuple(profile.measured)
    return ()


def _speed(
    loaded: Loaded, request: FitRequest, plan: MemoryPlan, shelf: Shelf
) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Return the prediction of the same load, or why there is none."""
    from gemmaspec.check.use_cases.predict import PredictRequest, on_its_machine, predicted

    overrides, ks = request.overrides, {0: None}
    if request.release:
        overrides = (*overrides, f"runtime.vllm={plan.demand.vllm}")
    if spec := loaded.profile.speculative:
        ks[spec.k_at(1)] = None
    asked = PredictRequest(
        profile=request.profile,
        overrides=overrides,
        no_spec=request.no_spec,
        machine=request.machine,
        ks=tuple(ks),
        concurrencies=(1,),
        contexts=(request.context,),
    )
    if plan.device.bandwidth is None or loaded.profile.nodes > 1:
        return None, ()
    try:
        need_room(loaded.profile, asked.contexts, 1, option="--cached")
        return predicted(facts_of(on_its_machine(asked), plan=plan, shelf=shelf), asked).as_json(), ()
    except (UsageError, ProfileError) as error:
        return None, (f"no speed: {error.message}",)


def _measured_here(loaded: Loaded, shelf: Shelf) -> Iterator[str]:
    """Yield what bench measured of this profile and kept (--save-measured), for each load."""
    if saved := own_rows(loaded):
        rows = of_plan(saved, taken_by(loaded.profile, shelf))
    else:
        rows = ()
    spec = loaded.profile.speculative
    measured = [row for row in rows if spec and (row.method, row.k) == (spec.method, spec.k_at(row.concurrency))]
    alone = {(row.concurrency, row.context, row.setting): row for row in rows if not row.k}
    for row in measured or alone.values():
        if row.k:
            base = alone.get((row.concurrency, row.context, row.setting))
            drafted = f" with {row.method} k={row.k}"
        else:
            base = None
            drafted = " without speculation"
        if base:
            without = f", {base.tokens_per_second:,.1f} without"
        else:
            without = ""
        yield (
            f"bench measured {row.tokens_per_second:,.1f} tokens/s{drafted}{without}; {row.concurrency} at once, "
            f"{row.context:,} tokens of prompt"
        )


def _on_its_machine(request: FitRequest, loaded: Loaded) -> Loaded:
    """Return the profile on the machine that --machine names; unchanged where that machine's GPU has no name here."""
    from gemmaspec.check.use_cases.predict import PredictRequest, on_its_machine

    if request.machine is None:
        return loaded
    asked = PredictRequest(
        profile=request.profile,
        overrides=request.overrides,
        no_spec=request.no_spec,
        machine=request.machine,
    )
    with contextlib.suppress(UsageError):
        return on_its_machine(asked)
    return loaded


def _refused(loaded: Loaded, vllm: str, models: Models, shelf: Shelf) -> Iterator[str]:
    """Yield what prevents the start, however much memory there is."""
    from gemmaspec.check.lint.check import check

    findings = check(loaded, patches=shelf, asked=vllm, target=models.target, draft=models.draft, notes=False)
    for finding in findings:
        if finding.severity == "error":
            yield f"{finding.code}: {f'{finding.key} ' if finding.key else ''}{finding.message}; {finding.fix}"


def _from_shapes(models: Models) -> Iterator[str]:
    """Yield for which models the shapes that ship are used, because their own headers are out of reach."""
    from gemmaspec.core.checkpoint.published.shipped import shipped_for

    for role, model in (("target", models.target), ("draft", models.draft)):
        if model and model.source == "shipped" and (known := shipped_for(model.ref)):
            yield f"{role}: {known.says}; {known.source}"


def _shared_memory(plan: MemoryPlan) -> Iterator[str]:
    yield (
        "CPU and GPU share this memory. vLLM takes its share of the total, and needs that much in MemAvailable when it "
        "starts; the page cache counts as available, memory of other programs does not"
    )
    yield (
        "leave some memory outside that share: after answering, a server held 0.8 to 1.4 GiB more, 1.6 GiB with 256 "
        "sequences (H200, vLLM 0.26.0, eager)"
    )
    if plan.device.free is None:
        free = plan.device.memory
    else:
        free = plan.device.free
    if plan.held is not None and plan.held > free:
        yield f"loading may need {gib(plan.held)}, but {gib(free)} are free: other programs may be swapped out"


def _notes(plan: MemoryPlan, attention: dict[str, str | None]) -> list[str]:
    notes: list[str] = []
    if plan.device.unified:
        notes += _shared_memory(plan)
    flash = any(name and "FLASH" in name for name in attention.values())
    if flash and (plan.device.major > 9 or plan.demand.cache_dtype.startswith("fp8")):
        notes.append("FlashAttention may choose larger blocks; computed with the block size of Triton's kernels")
    if plan.demand.tensor_parallel > 1:
        notes += _several_gpus(plan)
    if len(plan.demand.stages) > 1:
        notes += _IN_STAGES
    if plan.models.target.missing_files or (plan.models.draft and plan.models.draft.missing_files):
        notes.append("some weight files are missing, so the weights are larger than shown here")
    return notes


def _several_gpus(plan: MemoryPlan) -> Iterator[str]:
    """Yield where each GPU's weights come from, and what nobody has measured."""
    gpus = plan.demand.tensor_parallel
    models = [model for model in (plan.models.target, plan.models.draft) if model]
    if all(is_asked(model.text, gpus) for model in models):
        yield f"the weights are those of one of {gpus} GPUs, as vLLM's own classes divide such a model"
    else:
        yield f"of {gpus} GPUs each is taken to hold an equal part of the matrices, and the rest whole"
    yield "not known, and not counted: what NCCL and the all-reduce of vLLM or FlashInfer take on each GPU"
