"""Arms of a tuning: what a server is started for, built from profiles."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gemmaspec.core import launcher
from gemmaspec.core.errors import UsageError
from gemmaspec.core.patching.evidence import VARIABLE, readers
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.graphs import hurts
from gemmaspec.core.profile.machines import MACHINES, machine_kind
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.backends import backend_for
from gemmaspec.core.releases.drafting import BLOCKS
from gemmaspec.core.releases.facts import nearest
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.measure.bench.cells import NONE, Arm, arm_of, arms_of

USUAL: Final = (1, 2, 4, 8)
"""Drafted tokens to try in addition to a profile's own, if the draft generates them one by one."""
OF_A_BLOCK: Final = (4,)
"""The same where the draft makes a block in one pass, which costs the same however short it is."""
RUNNER: Final = "VLLM_USE_V2_MODEL_RUNNER"
_HOPPER: Final = "9.0"
DECODE_GRAPHS: Final = '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'


@dataclass(frozen=True, kw_only=True)
class Field:
    """Every arm of a tuning, and what was left out before anything was started."""

    arms: tuple[Arm, ...]
    """Without speculation first; then each profile's own k; then the others."""
    knobs: tuple[Arm, ...] = ()
    """What is tried on the fastest arm, for each profile; method and k of these say nothing."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Profile → why it cannot be compared."""
    tables: frozenset[str] = frozenset()
    """The profiles whose vLLM drafts by a table of k."""


def field_of(
    base: Profile,
    others: Sequence[Profile],
    *,
    ks: Sequence[int] = (),
    loads: Sequence[int],
    knobs: Sequence[str] = (),
    memory: Mapping[str, int] | None = None,
    patched: Collection[str] = (),
    untried: Mapping[str, Sequence[str]] | None = None,
    tables: Collection[str] = (),
    sampled: bool = False,
) -> Field:
    """Return the arms of `base` and of the other profiles of its target.

    `ks` replaces the usual ones, `knobs` are KEY=VALUE texts to try on the fastest arm in addition to its own, and
    `memory` has the bytes of each profile's draft;
    `patched` are profiles that take patches for speed, `untried` names every patch for speed that a profile could take
    where some were not measured on this GPU, and `tables` those that take k_by_requests, and
    `sampled` says whether answers are sampled.
    Raises UsageError if the target alone is the only arm left.
    """
    left_out: dict[str, str] = {}
    compared = [base]
    for other in others:
        if why := _unlike(other, base, loads):
            left_out[other.name] = why
        else:
            compared.append(other)
    bytes_of = memory or {}
    first: list[Arm] = []
    more: list[Arm] = []
    for profile in compared:
        arms = list(_of_profile(profile, ks, bytes_of.get(profile.name, 0)))
        first += arms[:1]
        more += arms[1:]
    if not first:
        raise UsageError(
            f"nothing to choose from: {base.name} does not speculate, nor does any profile of its target and machine",
            hint=f"gemmaspec tune {base.name} --arm PROFILE",
        )
    alone = Arm(profile=base.name, method=NONE, k=0)
    to_try: list[Arm] = []
    for profile in compared:
        own = (untried or {}).get(profile.name, ())
        to_try += _knobs(profile, knobs, patched=profile.name in patched, untried=own, sampled=sampled)
    return Field(arms=(alone, *first, *more), knobs=tuple(to_try), left_out=left_out, tables=frozenset(tables))


def with_knob(arm: Arm, knob: Arm) -> Arm:
    """Return the same arm with one more thing set."""
    return replace(
        arm, overrides=(*arm.overrides, *knob.overrides), knob=", ".join(filter(None, (arm.knob, knob.knob)))
    )


def with_launches(field: Field, profile: str, taken: Sequence[str], variable: str) -> Field:
    """Return a field that also tries launch parameters, with the patches that read them; the profile takes `taken`."""
    speed = ", ".join([*taken, *sorted(readers(variable) - {*taken})])
    overrides = (f'env.{VARIABLE}="{variable}"', f"patches.speed=[{speed}]")
    knob = Arm(profile=profile, method=NONE, k=0, overrides=overrides, knob="launch parameters of this GPU")
    return replace(field, knobs=(*field.knobs, knob))


def with_table(arm: Arm, table: Mapping[int, int]) -> Arm:
    """Return the arm of a table's largest k with the table."""
    tabled = arm.following(table)
    return replace(tabled, overrides=(*arm.overrides, f"speculative.{tabled.knob.replace(' ', '=', 1)}"))


def _unlike(profile: Profile, base: Profile, loads: Sequence[int]) -> str | None:
    """Return why a profile cannot be compared with `base`; None where it can."""
    target, base_target = profile.target, base.target
    if (target.model, target.revision) != (base_target.model, base_target.revision):
        return f"its target is {target.model}"
    if machine_kind(profile.machine) != machine_kind(base.machine):
        return f"it is for the machine {profile.machine}"
    if profile.speculative is None:
        return "it does not speculate"
    if profile.tuned is not None:
        return "tune has written it"
    shorter = (profile.serve.max_model_len or 0) < (base.serve.max_model_len or 0)
    if profile.serve.max_model_len and shorter:
        return f"its context ends at {profile.serve.max_model_len:,} tokens"
    if profile.serve.max_num_seqs and profile.serve.max_num_seqs < max(loads):
        return f"its serve.max_num_seqs is {profile.serve.max_num_seqs}, below --concurrency {max(loads)}"
    modes = known(resolved_of(profile).graphs)
    if modes and hurts(profile, modes, slow=True):
        return f"it drafts without CUDA graphs: {modes.why}"
    return None


def _of_profile(profile: Profile, ks: Sequence[int], memory: int) -> Iterator[Arm]:
    """Yield the arms of one profile, its own k first."""
    spec = profile.speculative
    if spec is None:
        return
    usual_k = spec.num_speculative_tokens or 1
    if spec.method in BLOCKS:
        usual = tuple(k for k in OF_A_BLOCK if k < usual_k)
    else:
        usual = USUAL
    if spec.synthetic_acceptance_rates:
        usual = tuple(k for k in usual if k <= len(spec.synthetic_acceptance_rates))
    asked = sorted((k for k in ks if k), key=lambda k: k != usual_k)
    own_first = dict.fromkeys((usual_k, *sorted(usual, reverse=True)))
    arms = [arm_of(profile, k) for k in asked or own_first]
    if spec.k_by_requests and not asked:
        arms.insert(0, *arms_of(profile, (usual_k,)))
    for arm in arms:
        yield replace(arm, profile=profile.name, required=len(profile.patches.required), memory=memory)


def _knobs(
    profile: Profile,
    asked: Sequence[str],
    *,
    patched: bool,
    untried: Sequence[str],
    sampled: bool,
) -> Iterator[Arm]:
    """Yield what is tried on the fastest arm: what was asked for, then patches, ids, runner, attention and graphs."""
    for text in asked:
        yield _knob(profile, text, text)
    if patched:
        yield _knob(profile, "without patches for speed", "patches.speed=off")
    if untried:
        yield _knob(profile, "patches not measured on this GPU", f"patches.speed=[{', '.join(untried)}]")
    if profile.draft and profile.draft.ids:
        yield _knob(profile, "a draft that scores all ids", "draft.ids=")
    vllm = vllm_of(profile)
    if profile.machine == "cpu":  # neither Triton, which model runner v2 needs, nor graphs
        return
    spec = profile.speculative
    by_default = vllm and RUNNER not in profile.env
    if by_default and spec and spec.method != "dspark" and resolved_of(profile, vllm=vllm).runner == "v2":
        yield _knob(profile, "model runner v1", f"env.{RUNNER}=0")
    yield from _tries(profile, vllm, sampled=sampled)
    yield from _attention(profile, vllm)
    if profile.serve.enforce_eager:
        yield _knob(profile, "with graphs", "serve.enforce_eager=false")
    elif resolved_of(profile).compile == "default":
        extra = [*profile.serve.extra_args, "--compilation-config", DECODE_GRAPHS]
        serve = profile.serve.model_copy(update={"extra_args": extra})
        graphs = known(resolved_of(profile.model_copy(update={"serve": serve}), vllm=vllm).graphs)
        if vllm and graphs and graphs.lost:
            return  # the backend gives up these graphs, and nothing is compiled
        words = json.dumps(extra)
        yield _knob(profile, "full graphs for decoding, nothing compiled", f"serve.extra_args={words}")


@dataclass(frozen=True)
class _Try:
    """A setting that is tried on the fastest arm."""

    name: str
    overrides: tuple[str, ...]
    since: str
    sampled: bool = False
    """Whether it changes answers that are sampled, and no others."""
    heads: frozenset[str] | None = None
    """Methods that it is for; None for the target alone, too."""
    quantized: bool = False
    """Whether it is for 4-bit weights."""
    assistant: bool = False
    """Whether it is for a draft that is one of Google's assistants, all of which have 16 bits."""


_ASSISTANT: Final = re.compile(r"google/gemma-4-.*-assistant", re.IGNORECASE)
_CHAINS: Final = frozenset({"mtp", "eagle3", "eagle", "draft_model", "dspark"})
_TRIES: Final = (
    _Try("matrices by Marlin", ("serve.linear_backend=marlin",), "0.22.0", quantized=True),
    _Try("accepted by blocks", ("speculative.rejection_sample_method=block",), "0.25.0", True, _CHAINS | {"dflash"}),
    _Try("draft sampled", ("speculative.draft_sample_method=probabilistic",), "0.22.0", True, _CHAINS),
    _Try("draft's matrices in FP8", ("draft.quantization=fp8",), "0.26.0", heads=frozenset({"mtp"}), assistant=True),
)
"""What released vLLM has and no default takes. A DFlash head drafts greedily; on Blackwell Marlin is W4A16 for W4A4."""


def _tries(profile: Profile, vllm: str | None, *, sampled: bool) -> Iterator[Arm]:
    """Yield the rows of _TRIES that go with a profile, its release and its traffic, and that it does not set itself."""
    release, spec = nearest(vllm), profile.speculative
    four_bits = "fp4" in profile.target.model.lower()
    for attempt in _TRIES:
        section, _, key = attempt.overrides[0].partition("=")[0].partition(".")
        if getattr(profile, section):
            value = getattr(getattr(profile, section), key, None)
        else:
            value = None
        fits = attempt.heads is None or bool(spec and spec.method in attempt.heads)
        released = launcher.range_contains(f">={attempt.since}", release)
        wanted = (sampled or not attempt.sampled) and (four_bits or not attempt.quantized)
        if attempt.assistant and not (profile.draft and _ASSISTANT.fullmatch(profile.draft.model)):
            continue
        if value is None and fits and released and wanted:
            yield _knob(profile, attempt.name, *attempt.overrides)


def _attention(profile: Profile, vllm: str | None) -> Iterator[Arm]:
    """Yield the other attention backend of the target, where vLLM has two for a Gemma 4 on the machine's GPU.

    A machine without a known GPU is taken to have two: a backend that it lacks does not start, and that is reported.
    A head of MTP inherits the target's; DFlash and DSpark run on FLASH_ATTN alone.
    """
    if profile.machine in MACHINES:
        capability = MACHINES[profile.machine].compute_capability
    else:
        capability = None
    release = nearest(vllm)
    if backend_for(release, capability or _HOPPER, masks=False, fp8=False) != "FLASH_ATTN":
        return
    if (profile.serve.attention_backend or "").upper() == "TRITON_ATTN":
        other = "FLASH_ATTN"
    else:
        other = "TRITON_ATTN"
    yield _knob(profile, f"attention backend {other}", f"serve.attention_backend={other}")


def _knob(profile: Profile, name: str, *overrides: str) -> Arm:
    return Arm(profile=profile.name, method=NONE, k=0, overrides=overrides, knob=name)
