"""`fit`: from a profile to whether it fits, on the machine it names or on another.

`inspect`: open one or two checkpoints, examine them, and check whether they work together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmaspec.check.fit.document import Fit, advice
from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.check.fit.overhead import gib
from gemmaspec.check.fit.roofline import link_of, roofline
from gemmaspec.check.here.planned import facts_of, plan_on, release_for
from gemmaspec.check.inspect.examine import examine
from gemmaspec.check.inspect.pair import KnownPair, Pairing, pair
from gemmaspec.core import data
from gemmaspec.core.checkpoint.parts import Checkpoint
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.finding import Finding, impossible
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.command import command_of
from gemmaspec.core.profile.fields import hub_id
from gemmaspec.core.profile.find import profile_folders, profile_names
from gemmaspec.core.profile.limits import need_room
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.kept.attention import Backends, expected, graphs_expected
from gemmaspec.run.kept.measurements import of_plan, own_rows, taken_by
from gemmaspec.run.kept.models import hub_cache
from gemmaspec.run.models.hub import same_words
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.stack.paths import is_local


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
    measured, capability = tuple(profile.measured), plan.device.capability
    fp8 = plan.flags.cache_dtype.startswith("fp8")
    attention = expected(profile, models.target, vllm=plan.flags.vllm, capability=capability, fp8=fp8)
    graphs = graphs_expected(profile, vllm, capability=capability, target=models.target)
    of_plan = (*_notes(plan, attention), *graphs)
    shelf = Shelf(data.patch_folders())
    speed, unknown = _speed(loaded, request, plan, shelf)
    return Fit(
        profile=profile.name,
        plan=plan,
        problems=tuple(plan.problems()),
        refused=tuple(_refused(loaded, vllm, models, shelf)),
        advice=tuple(advice(plan)),
        roofline=roofline(plan, context=request.context),
        speed=speed,
        measured=measured,
        attention=attention,
        link=link_of(plan),
        notes=(*notes, *_measured_here(loaded, shelf), *_from_shapes(models), *of_plan, *unknown),
    )


def _speed(
    loaded: Loaded, request: FitRequest, plan: MemoryPlan, shelf: Shelf
) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Return what `predict` says of the same load, and why it says nothing."""
    from gemmaspec.check.here.predict import PredictRequest, on_its_machine, predicted

    spec = loaded.profile.speculative
    asked = PredictRequest(
        profile=request.profile,
        overrides=(*request.overrides, *([f"runtime.vllm={plan.flags.vllm}"] if request.release else [])),
        no_spec=request.no_spec,
        machine=request.machine,
        ks=tuple(dict.fromkeys((0, spec.k_at(1)))) if spec else (0,),
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
    rows = of_plan(saved, taken_by(loaded.profile, shelf)) if (saved := own_rows(loaded)) else ()
    spec = loaded.profile.speculative
    measured = [row for row in rows if spec and (row.method, row.k) == (spec.method, spec.k_at(row.concurrency))]
    alone = {(row.concurrency, row.context, row.setting): row for row in rows if not row.k}
    for row in measured or alone.values():
        base = alone.get((row.concurrency, row.context, row.setting)) if row.k else None
        drafted = f" with {row.method} k={row.k}" if row.k else " without speculation"
        without = f", {base.tokens_per_second:,.1f} without" if base else ""
        yield (
            f"bench measured {row.tokens_per_second:,.1f} tokens/s{drafted}{without}; {row.concurrency} at once, "
            f"{row.context:,} tokens of prompt"
        )


def _refused(loaded: Loaded, vllm: str, models: Models, shelf: Shelf) -> Iterator[str]:
    """Yield what prevents the start, however much memory there is."""
    from gemmaspec.check.lint.check import check

    findings = check(loaded, patches=shelf, asked=vllm, target=models.target, draft=models.draft, notes=False)
    for finding in findings:
        if finding.severity == "error":
            yield f"{finding.code}: {f'{finding.key} ' if finding.key else ''}{finding.message}; {finding.fix}"


def _from_shapes(models: Models) -> Iterator[str]:
    """Yield which models nobody could be asked about."""
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
    free = plan.device.memory if plan.device.free is None else plan.device.free
    if plan.held is not None and plan.held > free:
        yield f"loading may need {gib(plan.held)}, but {gib(free)} are free: other programs may be swapped out"


def _notes(plan: MemoryPlan, attention: dict[str, str | None]) -> list[str]:
    notes: list[str] = []
    if plan.device.unified:
        notes += _shared_memory(plan)
    flash = any(name and "FLASH" in name for name in attention.values())
    if flash and (plan.device.major > 9 or plan.flags.cache_dtype.startswith("fp8")):
        notes.append("FlashAttention may choose larger blocks; computed with the block size of Triton's kernels")
    if plan.flags.tensor_parallel > 1:
        notes.append("assuming that the weights divide evenly over the GPUs, each with the memory named here")
    if plan.models.target.missing_files or (plan.models.draft and plan.models.draft.missing_files):
        notes.append("some weight files are missing, so the weights are larger than shown here")
    return notes


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """What to inspect."""

    target: str
    """A Hugging Face id, a folder, or the name of a profile."""
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """One checkpoint and the findings about it."""

    checkpoint: Checkpoint
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of an inspection."""

    target: Inspected
    draft: Inspected | None
    pairing: Pairing | None
    attention: Backends = field(default_factory=dict)
    """The attention backends that a profile's models will get; empty for a checkpoint, which names no machine."""
    graphs: tuple[str, ...] = ()
    """The CUDA graphs that a profile's server will lack."""

    @property
    def works(self) -> bool:
        """Whether no finding is an error."""
        looks = [look for look in (self.target, self.draft) if look]
        alone = any(impossible(look.findings) for look in looks)
        return not alone and (self.pairing is None or self.pairing.works)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A request with everything that a profile adds to it."""

    target: tuple[str, str | None]
    draft: tuple[str, str | None] | None
    method: str | None
    cache_dir: Path | None
    profile: Profile | None = None


def inspect(request: InspectRequest) -> Inspection:
    """Inspect a checkpoint, and its draft if one is named.

    Raises EnvironmentMissing, CheckpointError, and UsageError for a name that is neither a model nor a profile.
    """
    for ref in filter(None, (request.target, request.draft)):
        if name := hub_id(ref):
            raise UsageError(f"{ref} is an address, and models are named owner/name", hint=f"gemmaspec inspect {name}")
    wanted = _wanted(request)
    target = _opened(wanted.target, wanted, request)
    seen = _look(target, profile=wanted.profile)
    if wanted.draft is None:
        return Inspection(target=seen, draft=None, pairing=None, **_served(wanted, target))
    draft = _opened(wanted.draft, wanted, request)
    differ = target.tokenizer_digest != draft.tokenizer_digest
    words = same_words(target, draft, cache_dir=wanted.cache_dir) if differ else None
    pairing = pair(target, draft, method=wanted.method, words=words, known=known_pairs())
    return Inspection(target=seen, draft=_look(draft, drafts=True), pairing=pairing, **_served(wanted, target))


def _served(wanted: _Wanted, target: Checkpoint) -> dict[str, Any]:
    """Return what the server of a profile will choose; nothing for a checkpoint."""
    if wanted.profile is None:
        return {}
    graphs = graphs_expected(wanted.profile, capability=None, target=target)
    return {"attention": expected(wanted.profile, target), "graphs": tuple(graphs)}


def known_pairs() -> tuple[KnownPair, ...]:
    """Return the pairs of the available profiles that have a published figure."""
    loaded = [load_profile(str(file)).profile for file in profile_names(profile_folders()[-1:]).values()]
    return tuple(known for profile in loaded if (known := _known(profile)))


def _known(profile: Profile) -> KnownPair | None:
    known = next((cell for cell in profile.measured if not cell.target and not cell.draft), None)
    if profile.draft is None or profile.speculative is None or known is None:
        return None
    return KnownPair(
        target=profile.target.model,
        draft=profile.draft.model,
        method=profile.speculative.method,
        profile=profile.name,
        source=known.source,
    )


def _wanted(request: InspectRequest) -> _Wanted:
    draft = (request.draft, request.draft_revision) if request.draft else None
    if is_local(request.target) or ("/" in request.target and not request.target.endswith(".yaml")):
        return _Wanted(target=(request.target, request.revision), draft=draft, method=None, cache_dir=None)
    if request.revision:
        raise UsageError(f"{request.target} is a profile, which has its own revisions")
    profile = load_profile(request.target).profile
    of_profile = (profile.draft.model, profile.draft.revision) if profile.draft else None
    method = profile.speculative.method if profile.speculative and draft is None else None
    return _Wanted(
        target=(profile.target.model, profile.target.revision),
        draft=draft or of_profile,
        method=method,
        cache_dir=hub_cache(profile),
        profile=profile if draft is None else None,
    )


def _opened(model: tuple[str, str | None], wanted: _Wanted, request: InspectRequest) -> Checkpoint:
    ref, revision = model
    return open_checkpoint(ref, revision=revision, cache_dir=wanted.cache_dir, offline=request.offline)


def _look(checkpoint: Checkpoint, *, drafts: bool = False, profile: Profile | None = None) -> Inspected:
    text_only = profile is not None and bool(command_of(profile).switched("--language-model-only"))
    return Inspected(checkpoint=checkpoint, findings=examine(checkpoint, drafts=drafts, text_only=text_only))
