"""GS7xx: which vLLM and which packages run the profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.core.checkpoint.sizes import UNIFIED
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.foreign_words import OTHER_SERVER
from gemmaspec.core.releases.drafting import ASSISTANTS_FROM
from gemmaspec.core.releases.facts import facts_for, newest, spans

if TYPE_CHECKING:
    from packaging.version import Version

    from gemmaspec.core.finding import Severity

_SUFFIX: Final = "arctic-inference"
"""The architecture of the 12B."""


@rule("GS702", "warning", any_release=True)
def moving_tag(subject: Subject) -> Iterator[Issue]:
    """An image whose tag is not fixed, so that another vLLM release may start tomorrow; or one without vLLM."""
    image = subject.profile.image or ""
    if other := OTHER_SERVER.search(image.partition("@")[0].lower()):
        message = f"{image} is an image of {other[0]}, and gemmaspec starts vLLM on NVIDIA GPUs or a CPU"
        yield Issue(path=("image",), message=message, fix=f"use vllm/vllm-openai:v{subject.vllm}", severity="error")
        return
    _, _, tag = image.rpartition("/")[2].partition(":")
    if image and "@" not in image and (not tag or re.search(r"latest|nightly|main|dev", tag)):
        message = f"the tag {tag or 'latest'} is not fixed, so another vLLM release may start tomorrow"
        yield Issue(path=("image",), message=message, fix="use a release's tag, such as v0.33.0, or run gemmaspec lock")


_SNAPSHOT: Final = re.compile(r"gemma-?4?(?:-(?P<name>0505|unified)(?:-[\w.-]+)?)?")
"""Tags of vllm/vllm-openai that were built from branches while Gemma 4's support was written, and do not move."""


@rule("GS702", "warning", any_release=True)
def snapshot(subject: Subject) -> Iterator[Issue]:
    """An image that was built from a branch before the release that has its fixes."""
    repository, _, tag = (subject.profile.image or "").partition("@")[0].partition(":")
    if repository.endswith("vllm/vllm-openai"):
        found = _SNAPSHOT.fullmatch(tag)
    else:
        found = None
    if found is None:
        return
    if found["name"] == "0505":
        why = "its MTP head reads half of its MLP, and vllm#41789 saw 0.2 % of the drafts accepted; fixed in 0.21.0"
        severity: Severity | None = "error" if subject.resolved.asked_method == "mtp" else None
    else:
        if found["name"]:
            first = "0.23.0, the first with the 12B and its draft"
        else:
            first = "0.21.0, the first with MTP heads"
        why, severity = f"it is older than vLLM {first}", None
    message = f"the tag {tag} is a snapshot of a branch: {why}"
    yield Issue(path=("image",), message=message, fix=f"use vllm/vllm-openai:v{newest()}", severity=severity)


@rule("GS704", "warning", any_release=True)
def two_vllms(subject: Subject) -> Iterator[Issue]:
    """The image and the process engine run different releases."""
    profile = subject.profile
    if profile.runtime.vllm and profile.image:
        in_image = vllm_of(profile.model_copy(update={"runtime": profile.runtime.model_copy(update={"vllm": None})}))
        if in_image and in_image != profile.runtime.vllm:
            message = f"is {profile.runtime.vllm}, but the image has {in_image}"
            yield Issue(path=("runtime", "vllm"), message=message, fix="name the same release in both")


@rule("GS705", "error", of_gemma=True)
def transformers_apart(subject: Subject) -> Iterator[Issue]:
    """A range for transformers without a release that runs Gemma 4 under this vLLM."""
    asked = subject.profile.runtime.packages.get("transformers")
    working = subject.resolved.facts.transformers_working
    if asked and working and not _overlap(asked, working):
        message = f"is {asked}, but Gemma 4 runs under vLLM {subject.vllm} with transformers {working}"
        yield Issue(path=("runtime", "packages", "transformers"), message=message, fix=f"use '{working}', or remove it")


@rule("GS705", "warning", of_gemma=True)
def transformers_wider(subject: Subject) -> Iterator[Issue]:
    """A range for transformers that also allows releases that do not run Gemma 4 under this vLLM."""
    asked = subject.profile.runtime.packages.get("transformers")
    working = subject.resolved.facts.transformers_working
    if asked and working and _overlap(asked, working) and not _within(asked, working):
        message = f"{asked} allows releases outside {working}, with which Gemma 4 runs under vLLM {subject.vllm}"
        yield Issue(path=("runtime", "packages", "transformers"), message=message, fix=f"use '{working}', or remove it")


@rule("GS705", "error", of_gemma=True)
def transformers_for_mtp(subject: Subject) -> Iterator[Issue]:
    """A range for transformers that ends before Gemma 4's MTP head begins."""
    asked = subject.profile.runtime.packages.get("transformers")
    if asked and subject.resolved.method == "mtp" and not _overlap(asked, f">={ASSISTANTS_FROM}"):
        message = f"is {asked}, but Gemma 4's MTP head needs transformers {ASSISTANTS_FROM} or later"
        yield Issue(path=("runtime", "packages", "transformers"), message=message, fix=f"set '>={ASSISTANTS_FROM},<…'")


@rule("GS709", "warning", any_release=True)
def package_of_suffix(subject: Subject) -> Iterator[Issue]:
    """The method suffix without its package (SpeculativeConfig._validate_suffix_decoding, every release)."""
    runtime = subject.profile.runtime
    named = {name.lower().replace("_", "-") for name in runtime.packages}
    if subject.resolved.method == "suffix" and not runtime.python and _SUFFIX not in named:
        message = f"suffix needs the package {_SUFFIX}, which vLLM does not include; it stops without it"
        fix = f"add runtime.packages: {{{_SUFFIX}: '>=0.1.1,<0.2'}}, unless the image includes it"
        yield Issue(path=("speculative", "method"), message=message, fix=fix)


@rule("GS710", "warning")
def architecture(subject: Subject) -> Iterator[Issue]:
    """A target that only a later vLLM supports."""
    latest = facts_for(newest())
    size = subject.resolved.size
    named = UNIFIED if size and size.unified else None
    if subject.resolved.target:
        if subject.resolved.target.model_type == "gemma4_unified":
            named = UNIFIED
        else:
            named = subject.resolved.target.architecture
    if latest and named in latest.architectures - subject.resolved.facts.architectures:
        message = f"vLLM {subject.vllm} has no native model for {named}; available {spans('architecture', named)}"
        yield Issue(path=("target", "model"), message=message, fix="use a release that has it")


def _overlap(span: str, other: str) -> bool:
    """Return whether two ranges have a version in common; if so, a border or its neighbour is in both."""
    from packaging.specifiers import SpecifierSet

    both = SpecifierSet(f"{span},{other}")
    return any(both.contains(version, prereleases=True) for version in _borders(span, other))


def _within(span: str, other: str) -> bool:
    """Return whether every version of one range is in the other."""
    from packaging.specifiers import SpecifierSet

    inner, outer = SpecifierSet(span), SpecifierSet(other)
    in_span = filter(inner.contains, _borders(span, other))
    return all(outer.contains(version) for version in in_span)


def _borders(*ranges: str) -> Iterator[Version]:
    """Yield versions around every border of some ranges, and one beyond them all."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    for specifier in SpecifierSet(",".join(ranges)):
        version = Version(specifier.version.removesuffix(".*"))
        yield version
        yield Version(f"{version.base_version}.1")
        yield from _before(version)
    yield Version("0")
    yield Version("999")


def _before(version: Version) -> Iterator[Version]:
    """Return a version just below another, as 5.14.999 is below 5.15."""
    from packaging.version import Version

    parts = list(version.release)
    while parts and parts[-1] == 0:
        parts.pop()
    if parts:
        parts[-1] -= 1
        yield Version(".".join(map(str, [*parts, 999])))
