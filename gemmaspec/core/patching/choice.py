"""Which speed patches a start takes: those that were shown to pay there, none, or those that the profile names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching import backports, spot
from gemmaspec.core.patching.evidence import Claim, family_of, pairs_of, pairs_within
from gemmaspec.core.patching.patch import Patch
from gemmaspec.core.patching.runs_on import RunsOn

Speed = str | Sequence[str]
"""`auto`, `off`, or the ids of patches."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a plan takes."""

    taken: Mapping[str, tuple[launcher.Measured, ...]] = field(default_factory=dict)
    """Where each patch has evidence, in the order in which they are applied; empty for one that the profile names."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why each other speed patch is not taken."""
    because: Mapping[str, str] = field(default_factory=dict)
    """Why each patch is taken that was measured nowhere like here."""


def choose(speed: Speed, settings: Sequence[RunsOn], patches: Mapping[str, Patch], *, why_none: str = "") -> Choices:
    """Return the speed patches of a profile. `settings` are all ways in which its server may run.

    `why_none` says why there are none. Raise PatchError for a list with an unknown patch or one of a defect.
    """
    if speed == "off":
        return Choices()
    if not isinstance(speed, str):
        for name in speed:
            _check_named(name, patches)
        return Choices(taken=dict.fromkeys(speed, ()))
    rows: dict[str, tuple[launcher.Measured, ...]] = {}
    left_out: dict[str, str] = {}
    because: dict[str, str] = {}
    for patch in speed_patches(patches):
        kept = spot.kept_of(patch.id)
        decided = [decision(patch, setting, patches, kept) for setting in settings]
        covered = [(setting, one) for setting, one in zip(settings, decided, strict=True) if one.taken]
        if not covered:
            refused = next((one.because for one in decided if one.because), "")
            left_out[patch.id] = why_none or refused or why_not(patch, settings)
            continue
        rows[patch.id] = tuple(launcher.Measured(at.vllm, at.capability, one.place) for at, one in covered)
        if all(one.because for _, one in covered):
            because[patch.id] = covered[0][1].because
    ordered = _in_order(rows, left_out, patches)
    of_taken = {name: why for name, why in because.items() if name in ordered.taken}
    return replace(ordered, because=of_taken)


def _in_order(
    rows: Mapping[str, tuple[launcher.Measured, ...]], left_out: dict[str, str], patches: Mapping[str, Patch]
) -> Choices:
    """Return a choice in which every patch comes after the speed patches that it needs."""
    taken: dict[str, tuple[launcher.Measured, ...]] = {}
    waiting = list(rows)
    while waiting:
        ready = [id_ for id_ in waiting if not _lacks(patches[id_], taken, patches)]
        if not ready:
            for id_ in waiting:
                left_out[id_] = f"needs {_lacks(patches[id_], taken, patches)}, which is left out"
            break
        taken |= {id_: rows[id_] for id_ in ready}
        waiting = [id_ for id_ in waiting if id_ not in taken]
    return Choices(taken=taken, left_out=left_out)


def _lacks(patch: Patch, taken: Mapping[str, object], patches: Mapping[str, Patch]) -> str:
    """Return the first speed patch that a patch needs and that is not taken; "" if there is none."""
    for id_ in patch.text.needs:
        if id_ not in taken and _may_be_left_out(id_, patches):
            return id_
    return ""


def _may_be_left_out(id_: str, patches: Mapping[str, Patch]) -> bool:
    """Return whether a patch may be missing from a choice: one for speed, or one whose folder is invalid."""
    try:
        return id_ in patches and patches[id_].is_speed
    except PatchError:
        return True


def speed_patches(patches: Mapping[str, Patch]) -> Iterable[Patch]:
    """Yield every valid speed patch, in order of id. An invalid folder stops no start, and `patch list` tells it."""
    for name in patches:
        try:
            patch = patches[name]
        except PatchError:
            continue
        if patch.is_speed:
            yield patch


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether `auto` takes a patch for one way in which a server may run."""

    taken: bool
    because: str = ""
    """Why; "" where cells that ship say it, or nothing says anything."""
    place: str = ""
    """Of one that was measured on the spot, where; it is taken there alone."""


def decision(patch: Patch, setting: RunsOn, patches: Mapping[str, Patch], kept: Sequence[spot.Kept]) -> Decision:
    """Return whether `auto` takes a patch there: the one place where this is decided.

    What was measured on this machine comes first, where it says anything. Then the patch is taken where cells that ship
    show that it pays, or where a later vLLM does the same on every GPU.
    """
    measured, found = spot.verdict_here(kept, patch, patches, setting)
    if measured and found.taken is not None:
        place = measured.key.place if found.taken else ""
        return Decision(taken=found.taken, because=f"{measured.origin}: {found.because}", place=place)
    if is_shown(patch, setting):
        return Decision(taken=True)
    as_later = backports.reason_for(patch, vllm=setting.vllm, method=setting.method, backend=setting.backend)
    if as_later:
        return Decision(taken=True, because=as_later)
    return Decision(taken=False)


def is_taken(patch: Patch, setting: RunsOn, patches: Mapping[str, Patch]) -> bool:
    """Return whether `auto` takes a patch there."""
    return decision(patch, setting, patches, spot.kept_of(patch.id)).taken


def is_shown(patch: Patch, setting: RunsOn) -> bool:
    """Return whether a patch was shown to pay there, with cells of this very release."""
    claims = [claim for claim in patch.text.pays if all(inside(claim, setting) for *_, inside in _PARTS)]
    for pair in pairs_within(claims, patch.id, patch.evidence):
        same_release = _release(pair.having.vllm) == _release(setting.vllm)
        same_server = (pair.having.method, pair.having.attention_backend) == (setting.method, setting.backend)
        if same_release and same_server and family_of(pair.run.capability) == setting.family:
            return True
    return False


def _release(vllm: str) -> tuple[int, ...]:
    """Return the release of a version, to compare."""
    number = re.match(launcher.VERSION_NUMBER, vllm)
    if number:
        return launcher.release_key(number[0])
    return ()


def why_not(patch: Patch, settings: Sequence[RunsOn]) -> str:
    """Return what the evidence of a patch does not cover."""
    claims, left = patch.text.pays, list(settings)
    if not claims:
        if patch.evidence:
            return "measured, and it claims no setting in which it pays"
        return "no cells show a gain yet"
    for what, unknown, worded, inside in _PARTS:
        kept = []
        for setting in left:
            if any(inside(claim, setting) for claim in claims):
                kept.append(setting)
        if not kept:
            names = sorted({worded(setting) for setting in left} - {""})
            if names:
                return f"not measured with {what} {' or '.join(names)}"
            return unknown
        left = kept
    releases = {_release(pair.having.vllm) for pair in pairs_of(patch.id, patch.evidence)}
    not_measured = {setting.vllm for setting in left if _release(setting.vllm) not in releases}
    if not_measured:
        return f"not measured with vLLM {' or '.join(sorted(not_measured))}"
    return "measured with other combinations of GPU, vLLM, method and attention backend"


_Part = tuple[str, str, Callable[[RunsOn], str], Callable[[Claim, RunsOn], bool]]
_PARTS: Final[tuple[_Part, ...]] = (
    (
        "GPUs of the family",
        "the family of the GPU is not known",
        lambda setting: setting.family,
        lambda claim, setting: setting.family in claim.gpus,
    ),
    (
        "vLLM",
        "the release of vLLM is not known",
        lambda setting: setting.vllm,
        lambda claim, setting: launcher.range_contains(claim.versions, setting.vllm),
    ),
    (
        "the method",
        "the method is not known",
        lambda setting: setting.method,
        lambda claim, setting: setting.method in claim.methods,
    ),
    (
        "the attention backend",
        "which attention backend vLLM chooses is not known",
        lambda setting: setting.backend or "",
        lambda claim, setting: setting.backend in claim.backends,
    ),
)


def _check_named(name: str, patches: Mapping[str, Patch]) -> None:
    """Raise PatchError for what cannot be in a list of speed patches."""
    speed = sorted(patch.id for patch in speed_patches(patches))
    if name not in patches:
        near = difflib.get_close_matches(name, speed, n=1, cutoff=0.5)
        if near:
            known = f"did you mean {near[0]}?"
        else:
            known = f"the speed patches are {', '.join(speed) or 'none'}"
        raise PatchError(f"patches.speed: unknown patch {name}; {known}", hint="gemmaspec patch list")
    if not patches[name].is_speed:
        raise PatchError(f"patches.speed: {name} corrects a defect; list it under patches.required or patches.optional")
