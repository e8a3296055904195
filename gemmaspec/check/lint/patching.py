"""GS4xx: the patches that a profile lists, compared with those that it needs, and those for speed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.lint.attention import attention_backend
from gemmaspec.check.lint.rule import Issue, Path, Subject, rule
from gemmaspec.core import draft_ids, launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.bugs import bug_of
from gemmaspec.core.patching.choice import is_taken, speed_patches, why_not
from gemmaspec.core.patching.evidence import OWN_LAUNCHES, VARIABLE, family_of, is_twice, readers
from gemmaspec.core.patching.runs_on import RunsOn
from gemmaspec.core.patching.spot import shape_of
from gemmaspec.core.resolved.answer import Unknown

_SHARING: Final = "kv-sharing-uniform-specs"
_WINDOWS: Final = "kv-spec-uniform-valueerror"
_TEXT_ONLY: Final = "draft-text-only"
_EMBEDDINGS: Final = "mtp-share-embeddings"
_PARALLEL: Final = "mtp-dense-draft-parallel"
_THOUGHTS: Final = "thought-channel-nonstreaming"
_AWQ: Final = "nvfp4-awq"
_IDS: Final = draft_ids.PATCH
_SCALE: Final = "gemma4-dflash-embedding-scale"
_ON_CPUS: Final = ("cpu-expand-sampling", "cpu-top-k-no-rows")
REQUIRED_HERE: Final = frozenset(
    {_SHARING, _WINDOWS, _TEXT_ONLY, _EMBEDDINGS, _PARALLEL, _THOUGHTS, _AWQ, _SCALE, _IDS, *_ON_CPUS}
)
"""Patches that a rule of this module requires, in addition to those of a method (core/releases/drafting.py)."""
NOT_REQUIRED: Final = {
    "nvfp4-nan-scales": "only the weights' values show NaN scales; no check reads them, and a failed start names it"
}
"""Shipped patches that no rule can require, and why."""


@dataclass(frozen=True, kw_only=True)
class NeededPatch:
    """A patch that a profile needs under one vLLM release."""

    patch: str
    message: str
    certain: bool
    """Whether that is certain, because the models' layers are known."""
    fatal: bool = True
    """Whether the server does not start or dies without it."""


def needs(subject: Subject) -> Iterator[NeededPatch]:
    """Return every patch that the profile needs, with the reason."""
    yield from _for_method(subject)
    yield from _for_text_only(subject)
    yield from _for_sharing_alone(subject)
    yield from _for_scale(subject)
    yield from _for_embeddings(subject)
    yield from _for_parallel_experts(subject)
    yield from _for_thoughts(subject)
    yield from _for_awq(subject)
    yield from _for_ids(subject)
    yield from _for_sampling(subject)


@rule("GS401", "error")
def missing(subject: Subject) -> Iterator[Issue]:
    """A needed patch that the profile does not list."""
    listed = {*_listed(subject), *_misspelt(subject).values()}
    for need in needs(subject):
        if need.patch not in listed:
            sure = need.certain and need.fatal
            if need.certain:
                doubt = ""
            else:
                doubt = " (according to the models' names)"
            message = f"the patch {need.patch} is missing{doubt}: {need.message}"
            fix = f"add {need.patch} to patches.required"
            yield Issue(path=("patches",), message=message, fix=fix, severity=None if sure else "warning")


@rule("GS402", "warning")
def only_optional(subject: Subject) -> Iterator[Issue]:
    """A needed patch that is only optional: if it does not fit, the server starts without it and fails later."""
    optional = subject.profile.patches.optional
    for need in needs(subject):
        if need.patch in optional and need.certain and need.fatal:
            message = f"{need.patch} is optional, but this pair needs it: {need.message}"
            fix = "move it to patches.required"
            yield Issue(path=("patches", "optional", optional.index(need.patch)), message=message, fix=fix)


@rule("GS403", "note")
def needless(subject: Subject) -> Iterator[Issue]:
    """A listed patch that does nothing under this vLLM."""
    for path, name in _places(subject):
        patch = subject.patches.get(name)
        if not patch or (patch.text.speculation_only and not subject.resolved.method):
            continue
        ranges = [variant.specifier for variant in patch.variants]
        if not any(subject.runs(versions) for versions in ranges):
            message = f"{name} is not for vLLM {subject.vllm}, only for {' and '.join(ranges)}"
        elif patch.text.runner not in ("any", subject.resolved.runner):
            runs = subject.resolved.runner
            message = f"{name} changes model runner {patch.text.runner}, and vLLM {subject.vllm} uses {runs} here"
        else:
            continue
        yield Issue(path=path, message=message, fix="it does no harm; remove it if no other vLLM release will run")


@rule("GS404", "error", any_release=True)
def unknown(subject: Subject) -> Iterator[Issue]:
    """A listed patch that does not exist."""
    meant = _misspelt(subject)
    for path, name in _places(subject):
        if name not in subject.patches:
            if name in meant:
                fix = f"did you mean {meant[name]}?"
            else:
                fix = "list the patches with: gemmaspec patch list"
            yield Issue(path=path, message=f"unknown patch {name}", fix=fix)


@rule("GS404", "error", any_release=True)
def wrong_list(subject: Subject) -> Iterator[Issue]:
    """A patch for speed among those of defects, or the other way round; an unknown one in patches.speed."""
    known = {patch.id for patch in speed_patches(subject.patches)}
    for path, name in _places(subject):
        if name in known:
            message = f"{name} is a patch for speed, on which no start may depend"
            yield Issue(path=path, message=message, fix="list it under patches.speed, or leave patches.speed at auto")
    for path, name in _speed_places(subject):
        if name not in subject.patches:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
            if near:
                fix = f"did you mean {near[0]}?"
            else:
                fix = "list the patches with: gemmaspec patch list"
            yield Issue(path=path, message=f"unknown patch {name}", fix=fix)
        elif name not in known:
            yield _no_speed_patch(subject, path, name)


def _no_speed_patch(subject: Subject, path: Path, name: str) -> Issue:
    """Return what a patch is that patches.speed names and that is not for speed."""
    try:
        subject.patches[name]
    except PatchError as error:
        message = f"the patch {name} is invalid: {error.message.splitlines()[0]}"
        return Issue(path=path, message=message, fix=f"see gemmaspec patch show {name}")
    message = f"{name} corrects a defect, so leaving it out would change what is served"
    return Issue(path=path, message=message, fix="list it under patches.required or patches.optional")


@rule("GS406", "note")
def speed_unmeasured(subject: Subject) -> Iterator[Issue]:
    """A patch for speed that the profile names, without measured cells for this vLLM, GPU, method and backend."""
    setting = _setting(subject)
    known = {patch.id: patch for patch in speed_patches(subject.patches)}
    for path, name in _speed_places(subject):
        patch = known.get(name)
        if patch and not is_taken(patch, setting, subject.patches):
            message = f"nothing shows that {name} pays here: {why_not(patch, [setting])}"
            fix = f"measure it: gemmaspec bench {subject.profile.name} --speed-patches 'speed,without {name}'"
            yield Issue(path=path, message=message, fix=fix)


@rule("GS406", "note")
def speed_of_a_build(subject: Subject) -> Iterator[Issue]:
    """`patches.speed: auto` under a vLLM that is not a release: nothing was measured there, so nothing is taken."""
    if subject.profile.patches.speed != "auto" or not subject.machine.gpus:
        return
    if launcher.PUBLISHED_RELEASE.fullmatch(subject.vllm) or not any(speed_patches(subject.patches)):
        return
    message = f"is auto, and takes no patch with vLLM {subject.vllm}: only published releases were measured"
    yield Issue(path=("patches", "speed"), message=message, fix="name the patches, or use a release of vLLM")


@rule("GS408", "error")
def own_launches(subject: Subject) -> Iterator[Issue]:
    """Launch parameters of one's own that no patch would read, or in a form that stops it."""
    value, path = subject.profile.env.get(VARIABLE), ("env", VARIABLE)
    if value is not None and (not OWN_LAUNCHES.fullmatch(value) or is_twice(value)):
        message = "must be rows such as prompt:12,512,1=32,64,8,2 with spaces between, none twice"
        yield Issue(path=path, message=message, fix=f"let gemmaspec tune {subject.profile.name} write it")
    elif value is not None and (missing := readers(value) - taken(subject)):
        message = f"is read by {' and '.join(sorted(missing))} alone, which is left out"
        yield Issue(path=path, message=message, fix="list it under patches.speed")


def taken(subject: Subject) -> frozenset[str]:
    """Return the patches for speed that the profile takes under this release."""
    speed = subject.profile.patches.speed
    if speed == "off":
        return frozenset()
    if not isinstance(speed, str):
        return frozenset(speed)
    setting = _setting(subject)
    return frozenset(patch.id for patch in speed_patches(subject.patches) if is_taken(patch, setting, subject.patches))


def _setting(subject: Subject) -> RunsOn:
    """Return how the profile's server runs under this release."""
    capability = subject.machine.compute_capability
    return RunsOn(
        vllm=subject.vllm,
        family=family_of(capability) or "",
        method=subject.resolved.method or "none",
        backend=attention_backend(subject, "target"),
        shape=shape_of(subject.resolved),
    )


def _for_method(subject: Subject) -> Iterator[NeededPatch]:
    """Yield the patches that the method needs, except those that the models' layers make unnecessary."""
    for row in subject.resolved.facts.methods_named(subject.resolved.method) if subject.resolved.method else ():
        if row.hybrid_manager in ("any", "on" if subject.resolved.hybrid else "off"):
            for name in row.patches:
                if name == _SHARING:
                    yield from _for_sharing(subject)
                elif name == _WINDOWS:
                    yield from _for_windows(subject)
                else:
                    yield NeededPatch(patch=name, message=_symptom(subject, name), certain=True)


def _for_sharing(subject: Subject) -> Iterator[NeededPatch]:
    shares = (subject.shares_kv("draft"), subject.shares_kv("target"))
    if any(shares) or None in shares:
        yield NeededPatch(patch=_SHARING, message=_symptom(subject, _SHARING), certain=any(shares))


def _for_windows(subject: Subject) -> Iterator[NeededPatch]:
    windows = (subject.windows("target"), subject.windows("draft"))
    known = None not in windows
    if not known or len(frozenset().union(*(window or () for window in windows))) > 1:
        yield NeededPatch(patch=_WINDOWS, message=_symptom(subject, _WINDOWS), certain=known)


def _for_sharing_alone(subject: Subject) -> Iterator[NeededPatch]:
    """Yield the patch that E2B and E4B need even without a draft."""
    if subject.resolved.method != "draft_model" and not subject.resolved.hybrid and subject.shares_kv("target"):
        yield NeededPatch(patch=_SHARING, message=_symptom(subject, _SHARING), certain=True)


def _for_scale(subject: Subject) -> Iterator[NeededPatch]:
    """Yield the patch for a DFlash head trained on scaled embeddings: one that is not in speculators' format."""
    if subject.resolved.method != "dflash" or not subject.runs(">=0.26"):
        return
    head = subject.resolved.draft
    if head:
        by_speculators = "speculators_model_type" in head.config
    else:
        by_speculators = "speculator" in subject.name("draft").lower()
    if not by_speculators:
        yield NeededPatch(patch=_SCALE, message=_symptom(subject, _SCALE), certain=head is not None, fatal=False)


def _for_text_only(subject: Subject) -> Iterator[NeededPatch]:
    spec = subject.profile.speculative
    drafts = spec is not None and (subject.resolved.method == "draft_model" or bool(spec.parallel_drafting))
    media = subject.resolved.media
    if drafts and subject.resolved.runner == "v1" and media != frozenset():
        certain = subject.resolved.target is not None and not isinstance(media, Unknown)
        yield NeededPatch(patch=_TEXT_ONLY, message=_symptom(subject, _TEXT_ONLY), certain=certain)


def _for_embeddings(subject: Subject) -> Iterator[NeededPatch]:
    if subject.resolved.method == "mtp" and subject.resolved.runner == "v1" and subject.runs(">=0.25,<0.27"):
        yield NeededPatch(patch=_EMBEDDINGS, message=_symptom(subject, _EMBEDDINGS), certain=True)


def _for_parallel_experts(subject: Subject) -> Iterator[NeededPatch]:
    """Yield the patch without which runner v2 verifies the assistant with the target's expert parallelism."""
    given = subject.command.argument("--enable-expert-parallel")
    asked = given is not None and not given.negated
    if asked and subject.resolved.method == "mtp" and subject.resolved.runner == "v2" and subject.runs(">=0.25"):
        yield NeededPatch(patch=_PARALLEL, message=_symptom(subject, _PARALLEL), certain=True)


def _for_thoughts(subject: Subject) -> Iterator[NeededPatch]:
    if subject.command.value("--reasoning-parser") == "gemma4" and subject.runs("<0.19.1"):
        yield NeededPatch(patch=_THOUGHTS, message=_symptom(subject, _THOUGHTS), certain=True, fatal=False)


def _for_awq(subject: Subject) -> Iterator[NeededPatch]:
    for role in ("target", "draft"):
        checkpoint = subject.checkpoint(role)
        if checkpoint:
            quantization = checkpoint.quantization
        else:
            quantization = None
        if quantization and quantization.algorithm == "NVFP4_AWQ":
            yield NeededPatch(patch=_AWQ, message=f"no vLLM loads the {role}'s NVFP4_AWQ by itself", certain=True)


def _for_ids(subject: Subject) -> Iterator[NeededPatch]:
    """Yield the patch without which a list of ids changes nothing, and nobody is told."""
    if subject.profile.draft and subject.profile.draft.ids and subject.resolved.method == "mtp":
        yield NeededPatch(patch=_IDS, message=_symptom(subject, _IDS), certain=True)


def _for_sampling(subject: Subject) -> Iterator[NeededPatch]:
    """Yield the patches without which a CPU drafts for greedy requests alone; up to 0.19 it drafts for none."""
    if subject.resolved.method and not subject.machine.gpus and subject.runs(">=0.20"):
        for name in _ON_CPUS:
            yield NeededPatch(patch=name, message=_symptom(subject, name), certain=True, fatal=False)


def _symptom(subject: Subject, name: str) -> str:
    """Return what fails without a patch, according to its folder."""
    patch = subject.patches.get(name)
    if patch:
        symptom = bug_of(patch.text).symptom.removesuffix(".")
    else:
        symptom = "vLLM needs it"
    if symptom.startswith("vLLM"):
        return symptom
    return symptom[0].lower() + symptom[1:]


def _listed(subject: Subject) -> tuple[str, ...]:
    return (*subject.profile.patches.required, *subject.profile.patches.optional)


def _misspelt(subject: Subject) -> dict[str, str]:
    """Return the closest patch for each listed name that is misspelled."""
    unknown = [name for name in _listed(subject) if name not in subject.patches]
    misspelt = {}
    for name in unknown:
        near = difflib.get_close_matches(name, subject.patches, n=1, cutoff=0.6)
        if near:
            misspelt[name] = near[0]
    return misspelt


def _places(subject: Subject) -> Iterator[tuple[Path, str]]:
    patches = subject.profile.patches
    for kind, names in (("required", patches.required), ("optional", patches.optional)):
        for index, name in enumerate(names):
            yield ("patches", kind, index), name


def _speed_places(subject: Subject) -> Iterator[tuple[Path, str]]:
    speed = subject.profile.patches.speed
    for index, name in enumerate([] if isinstance(speed, str) else speed):
        yield ("patches", "speed", index), name
