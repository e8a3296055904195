"""The profiles that a tuning compares: its own, those that are named, and shipped ones of its target and machine.

The stage of `tune` that measures on this machine's GPU how kernels are launched best.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from gemmaspec.check.lint.check import check
from gemmaspec.core import data
from gemmaspec.core.checkpoint.matrices import nvfp4_matrices
from gemmaspec.core.errors import EnvironmentMissing, ProfileError, UsageError
from gemmaspec.core.patching.evidence import READERS, VARIABLE
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile import limits
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import MACHINES, machine_kind
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.rules import need_one_machine
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.measure.tune.arms import Field, field_of
from gemmaspec.measure.tune.launches import Launches, layers, reading, tokens
from gemmaspec.measure.tune.trials import TuneRequest
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.kept.asked_profile import load_for, need_one_server
from gemmaspec.run.kept.models import hub_cache, models_of
from gemmaspec.run.machine import readings
from gemmaspec.run.models.hub_cache import cached_snapshot
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.stack.speed import speed_choice, untried
from gemmaspec.serve.doctor_subject import DoctorSubject, said_on_gpu

OnGpu = Callable[..., list[str]]
"""Asks a script as `said_on_gpu` does."""
_FP8: Final = ("fp8", "fp8_e4m3")
"""With these caches vLLM casts the queries to FP8 too, where the GPU computes with it."""
_START_S: Final = 300
"""For imports, and for a compilation that is under way when the time is over."""
_SHARE, _MOST_S, _MOST_MATRICES_S = 0.1, 60.0, 180.0
"""Of the budget that prompts take, and that matrices take, at most; seconds of a kind of layer, and of all matrices."""
_TOKENS, _CONTEXT = 2048, 8192
"""Tokens of a prompt that are computed at once, and the prompt up to their end."""
USUAL_LOADS: Final = (1, 4, 8)
TABLES_FROM: Final = Version("0.32.0")
"""The first vLLM whose table of k was measured against fixed ones."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Every profile with an arm."""

    base: Loaded
    loaded: Mapping[str, Loaded]
    """By the profile's name, the tuned one first."""
    typed: Mapping[str, str]
    """How each is named to load it."""
    loads: tuple[int, ...]
    field: Field

    @classmethod
    def of(cls, asked: TuneRequest) -> Compared:
        """Return what is compared.

        Raises UsageError for a load that the profile does not run, for a named profile that cannot be compared, for a
        server on several machines, for replicas, and where there is nothing to choose from.
        """
        profile = asked.profile
        base = load_for("tune", profile, overrides=asked.overrides)
        need_one_machine(base.profile, "tune")
        need_one_server(profile, base, "tune")
        loads = limits.concurrencies(base.profile, sorted(asked.loads), usual=USUAL_LOADS, why=limits.QUEUED)
        for text in asked.tries:  # a mistake in one ends it now, and not once the fastest arm is known
            load_profile(profile, overrides=(*asked.overrides, text))
        profiles = {base.profile.name: (profile, base)}
        for name in asked.arms:
            loaded = load_profile(name, overrides=asked.overrides)
            profiles.setdefault(loaded.profile.name, (name, loaded))
        named = [loaded.profile for _, loaded in list(profiles.values())[1:]]
        if asked.others:
            for loaded in _shipped(base, asked.overrides):
                profiles.setdefault(loaded.profile.name, (loaded.profile.name, loaded))
        others = [other.profile for _, other in list(profiles.values())[1:]]
        field = _field(asked, base.profile, others, profiles, loads)
        for other in named:
            if why := field.left_out.get(other.name):
                raise UsageError(f"--arm {other.name} cannot be compared with {base.profile.name}: {why}")
        kept = {name: other for name, other in profiles.items() if name not in field.left_out}
        return cls(
            base=base,
            loaded={name: loaded for name, (_, loaded) in kept.items()},
            typed={name: typed for name, (typed, _) in kept.items()},
            loads=loads,
            field=field,
        )


def _field(
    asked: TuneRequest,
    base: Profile,
    others: Sequence[Profile],
    profiles: Mapping[str, tuple[str, Loaded]],
    loads: Sequence[int],
) -> Field:
    """Return what is tried of `base` and of the other profiles; `profiles` has how each was named, and its file."""
    shelf = Shelf(data.patch_folders())
    memory: dict[str, int] = {}
    untried: dict[str, Sequence[str]] = {}
    patched: set[str] = set()
    tables: set[str] = set()
    for name, (typed, loaded) in profiles.items():
        memory[name] = _draft_bytes(loaded.profile)
        untried[name] = _with_untried(loaded.profile, shelf)
        if speed_choice(loaded.profile, shelf).taken:
            patched.add(name)
        if _takes_table(typed, loaded.profile, asked.overrides):
            tables.add(name)
    return field_of(
        base,
        others,
        ks=asked.ks,
        loads=loads,
        knobs=asked.tries,
        sampled=asked.temperature != 0,
        memory=memory,
        patched=patched,
        untried=untried,
        tables=tables,
    )


def _shipped(base: Loaded, overrides: Sequence[str]) -> Iterator[Loaded]:
    """Yield the shipped profiles of the same target and machine that draft."""
    for name, file in profile_names([data.PROFILES]).items():
        if name == base.profile.name:
            continue
        try:
            plain = load_profile(str(file)).profile
            same = plain.target.model == base.profile.target.model and machine_kind(plain.machine) == machine_kind(
                base.profile.machine
            )
            if same and plain.speculative and plain.nodes == 1:
                yield load_profile(name, overrides=overrides)
        except (ProfileError, UsageError):  # an own profile of that name, or a --set that does not go with it
            continue


def _with_untried(profile: Profile, shelf: Shelf) -> tuple[str, ...]:
    """Return the patches for speed that a profile takes and those not measured on its GPU; nothing without these."""
    more = untried(profile, shelf)
    if more:
        return (*speed_choice(profile, shelf).taken, *more)
    return ()


def _takes_table(typed: str, profile: Profile, overrides: Sequence[str]) -> bool:
    """Return whether the profile's release is known to follow a table of k, and lint refuses none of its own."""
    spec, vllm = profile.speculative, vllm_of(profile)
    if not spec or spec.k_by_requests or not spec.num_speculative_tokens or Version(vllm or "0") < TABLES_FROM:
        return False
    table = f"speculative.k_by_requests={{1: {spec.num_speculative_tokens}}}"
    tabled = load_profile(typed, overrides=(*overrides, table))
    findings = check(tabled, patches={}, asked=vllm_of(tabled.profile), notes=False)
    return all(finding.code != "GS820" for finding in findings)


def _draft_bytes(profile: Profile) -> int:
    """Bytes of the draft's weights on this machine; 0 without a draft, and where they are not here."""
    for model in models_of(profile):
        if model.role == "draft":
            if model.local:
                cached = None
            else:
                cached = cached_snapshot(model.model, model.revision, hub_cache(profile))
            folder = model.folder if model.local else cached
            if folder and folder.is_dir():
                return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return 0


def launches_of(
    compared: Compared, request: TuneRequest, note: Callable[[str], None], ask: OnGpu = said_on_gpu
) -> Launches | None:
    """Measure in the image or environment that would run the tuned profile; its server must be stopped.

    Returns None where the profile launches other kernels, or says how. Raises EnvironmentMissing if there is no GPU,
    image or environment, or no kernel can be launched.
    """
    loaded, profile = compared.base, compared.base.profile
    if not MACHINES[profile.machine].gpus or VARIABLE in profile.env:
        return None
    model, parallel = profile.target, profile.serve.tensor_parallel_size or 1
    target = open_checkpoint(model.model, revision=model.revision, cache_dir=hub_cache(profile), shapes=True)
    resolved = resolved_of(profile, target=target)
    backend = known(resolved.backend)
    if "TRITON" in (backend or "TRITON"):
        kinds = layers(target.text, tensor_parallel=parallel)
    else:
        kinds = []
    if _has_humming(profile):
        shapes = list(nvfp4_matrices(target, tensor_parallel=parallel))
    else:
        shapes = []
    if not kinds and not shapes:
        return None
    chosen, _ = choose_engine(request.engine, profile=profile)
    subject = DoctorSubject(loaded=loaded, engine=chosen, forced=request.engine, overrides=request.overrides)
    server = subject.server
    assert server is not None
    share_s = _SHARE * request.budget_s
    seconds, matrices_s = min(_MOST_S, share_s / max(1, len(kinds))), min(_MOST_MATRICES_S, share_s)
    most_s = int(len(kinds) * seconds + bool(shapes) * matrices_s) + _START_S
    job = {
        "layers": kinds, "fp8": known(resolved.cache) in _FP8,
        "new": _TOKENS, "context": _CONTEXT, "seconds": seconds, "matrices": shapes,
        "tokens": tokens(compared.loads, {arm.k for arm in compared.field.arms}), "matrices_seconds": matrices_s,
        "most_seconds": most_s,
    }  # fmt: skip
    note(f"launch parameters of {len(kinds)} kinds of attention layers and {len(shapes)} matrices, at most {most_s} s")
    launches = reading(ask(subject, server, data.FIND_LAUNCHES, json.dumps(job), limit_s=most_s + _START_S))
    if isinstance(launches, str):
        raise EnvironmentMissing(f"nothing was measured: {launches}", hint=f"gemmaspec doctor {profile.name}")
    note(f"  {launches}")
    return launches


def _has_humming(profile: Profile) -> bool:
    """Return whether Humming multiplies NVFP4 here, as vLLM 0.32.0 prefers on capability 9.x, and its patch fits."""
    backend, gpus = profile.serve.linear_backend, readings.gpus()
    hopper = gpus is not None and any(capability.startswith("9.") for capability in gpus.capabilities[:1])
    fits = Shelf(data.patch_folders())[READERS["matrix"]].claims(vllm_of(profile) or "0")
    return fits and (backend == "humming" or (backend is None and hopper))
