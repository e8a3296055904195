"""The vLLM bugs that patches fix, as their folders describe them: the symptoms and what to do.

Which speed patches a start takes: those whose evidence covers it, none, or those that the profile names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from gemmaspec.core import data, launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.evidence import Claim, family_of, pairs_of, supporting
from gemmaspec.core.patching.patch import Patch, PatchText, load_text

_ANY: Final = ".{0,300}"
"""The pattern for … in an error text."""
_BEGIN: Final = r"(?:^|: |, )"
"""Error texts begin a message or follow the name of an exception or pydantic's "Value error, "."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One bug of vLLM, as patch.yaml describes it."""

    patch: str
    symptom: str
    """One sentence: what goes wrong without the patch."""
    errors: tuple[str, ...]
    """Exact error texts, in which … matches any text."""
    instead: str | None
    """The workaround without the patch, in the imperative; None if there is no workaround."""
    versions: tuple[str, ...]
    """The releases that the patch is written for."""
    fixed_in: str | None = None
    """The release of vLLM that fixes the bug; None where none is known."""

    def concerns(self, version: str) -> bool:
        """Return whether the patch is written for a release of vLLM."""
        return any(launcher.range_contains(versions, version) for versions in self.versions)

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches one of its error texts in a log message."""
        texts = (_ANY.join(re.escape(part) for part in error.split("…")) for error in self.errors)
        return re.compile(f"{_BEGIN}(?:{'|'.join(texts)})")

    def fix(self, version: str | None = None) -> str | None:
        """Return one sentence on what to do; None if no fix is known for this release of vLLM, or it has the fix."""
        if version and self.fixed_in and launcher.range_contains(f">={self.fixed_in}", version):
            return None
        instead = f"{self.instead[0].upper()}{self.instead[1:]}." if self.instead else None
        if version is not None and not self.concerns(version):
            return instead
        return f"Add the patch {self.patch} to patches.required{f', or {self.instead}' if self.instead else ''}."


def bug_of(text: PatchText) -> Bug:
    """Return the bug that a patch.yaml describes."""
    return Bug(
        patch=text.id,
        symptom=text.symptom or text.title,
        errors=text.errors,
        instead=text.instead,
        versions=tuple(variant.versions for variant in text.variants),
        fixed_in=text.applied_upstream.partition(",")[0] if text.applied_upstream else None,
    )


@cache
def bugs(folders: Sequence[Path] | None = None) -> tuple[Bug, ...]:
    """Return the bugs of some folders of patches, by default the shipped one and the user's own.

    Invalid patch folders are skipped, because other commands report them and this list only explains failures.
    """
    by_name: dict[str, Bug] = {}
    for folder in folders or data.patch_folders():
        for file in sorted(folder.glob("*/patch.yaml")):
            try:
                by_name[file.parent.name] = bug_of(load_text(file.parent))
            except PatchError:
                continue
    return tuple(by_name.values())


@cache
def error_text(patch: str, number: int = 0) -> str:
    """Return one of the exact error texts that appear without a shipped patch."""
    return load_text(data.PATCHES / patch).errors[number]


Speed = str | Sequence[str]
"""`auto`, `off`, or the ids of patches."""


@dataclass(frozen=True, kw_only=True)
class RunsOn:
    """One way in which a server may come to run: a release, on a family of GPUs."""

    vllm: str
    family: str
    capability: str = ""
    """The GPU's compute capability, to be found on the machine at the start; "" if the profile names the machine."""
    method: str
    """`none` without speculation."""
    backend: str | None
    """The attention backend that will run; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a plan takes."""

    taken: Mapping[str, tuple[launcher.Measured, ...]] = field(default_factory=dict)
    """Where each patch has evidence, in the order in which they are applied; empty for one that the profile names."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why each other speed patch is not taken."""


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
    for patch in speed_patches(patches):
        covered = [setting for setting in settings if is_shown(patch, setting)]
        if covered:
            rows[patch.id] = tuple(launcher.Measured(setting.vllm, setting.capability) for setting in covered)
        else:
            left_out[patch.id] = why_none or why_not(patch, settings)
    return _in_order(rows, left_out, patches)


def _in_order(
    rows: Mapping[str, tuple[launcher.Measured, ...]], left_out: dict[str, str], patches: Mapping[str, Patch]
) -> Choices:
    """Return a choice in which every patch comes after the speed patches that it needs."""
    taken: dict[str, tuple[launcher.Measured, ...]] = {}
    waiting = list(rows)
    while waiting:
        ready = [id_ for id_ in waiting if not _lacks(patches[id_], taken, patches)]
        if not ready:
            left_out |= {id_: f"needs {_lacks(patches[id_], taken, patches)}, which is left out" for id_ in waiting}
            break
        taken |= {id_: rows[id_] for id_ in ready}
        waiting = [id_ for id_ in waiting if id_ not in taken]
    return Choices(taken=taken, left_out=left_out)


def _lacks(patch: Patch, taken: Mapping[str, object], patches: Mapping[str, Patch]) -> str:
    """Return the first speed patch that a patch needs and that is not taken; "" if there is none."""
    return next((id_ for id_ in patch.text.needs if id_ not in taken and _may_be_left_out(id_, patches)), "")


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


def is_shown(patch: Patch, setting: RunsOn) -> bool:
    """Return whether a patch was shown to pay there, with cells of this very release."""
    claims = [claim for claim in patch.text.pays if all(inside(claim, setting) for *_, inside in _PARTS)]
    pairs = [
        pair for pair in pairs_of(patch.id, patch.evidence) if _release(pair.having.vllm) == _release(setting.vllm)
    ]
    return any(
        family_of(pair.run.capability) == setting.family
        and (pair.having.method, pair.having.attention_backend) == (setting.method, setting.backend)
        for claim in claims
        for pair in supporting(claim, pairs)
    )


def _release(vllm: str) -> tuple[int, ...]:
    """Return the release of a version, to compare."""
    number = re.match(launcher.VERSION_NUMBER, vllm)
    return launcher.release_key(number[0]) if number else ()


def why_not(patch: Patch, settings: Sequence[RunsOn]) -> str:
    """Return what the evidence of a patch does not cover."""
    claims, left = patch.text.pays, list(settings)
    if not claims:
        return "measured, and it claims no setting in which it pays" if patch.evidence else "no cells show a gain yet"
    for what, unknown, worded, inside in _PARTS:
        kept = [setting for setting in left if any(inside(claim, setting) for claim in claims)]
        if not kept:
            names = sorted({worded(setting) for setting in left} - {""})
            return f"not measured with {what} {' or '.join(names)}" if names else unknown
        left = kept
    releases = {_release(pair.having.vllm) for pair in pairs_of(patch.id, patch.evidence)}
    if not_measured := sorted({setting.vllm for setting in left if _release(setting.vllm) not in releases}):
        return f"not measured with vLLM {' or '.join(not_measured)}"
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
        known = f"did you mean {near[0]}?" if near else f"the speed patches are {', '.join(speed) or 'none'}"
        raise PatchError(f"patches.speed: unknown patch {name}; {known}", hint="gemmaspec patch list")
    if not patches[name].is_speed:
        raise PatchError(f"patches.speed: {name} corrects a defect; list it under patches.required or patches.optional")
