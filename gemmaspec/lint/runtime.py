"""GS7xx: which vLLM and which packages run it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Subject
from gemmaspec.profile.runs import vllm_of
from gemmaspec.releases.facts import facts_for, newest, spans
from gemmaspec.releases.transformers import ASSISTANTS_FROM

if TYPE_CHECKING:
    from packaging.version import Version

_SUFFIX: Final = "arctic-inference"
_UNIFIED: Final = "Gemma4UnifiedForConditionalGeneration"
"""The architecture of the 12B."""


@rule("GS702", "warning", any_release=True)
def moving_tag(subject: Subject) -> Iterator[Issue]:
    """An image whose tag moves: what starts today may be another vLLM tomorrow."""
    image = subject.profile.image or ""
    _, _, tag = image.rpartition("/")[2].partition(":")
    if image and "@" not in image and (not tag or re.search(r"latest|nightly|main|dev", tag)):
        message = f"the tag {tag or 'latest'} moves, so another vLLM may start tomorrow"
        yield Issue(path=("image",), message=message, fix="use a release's tag, such as v0.33.0, or gemmaspec lock")


@rule("GS704", "warning", any_release=True)
def two_vllms(subject: Subject) -> Iterator[Issue]:
    """The image and the process engine run different releases."""
    profile = subject.profile
    if profile.runtime.vllm and profile.image:
        in_image = vllm_of(profile.model_copy(update={"runtime": profile.runtime.model_copy(update={"vllm": None})}))
        if in_image and in_image != profile.runtime.vllm:
            message = f"is {profile.runtime.vllm}, and the image holds {in_image}"
            yield Issue(path=("runtime", "vllm"), message=message, fix="name the same release in both")


@rule("GS705", "error")
def transformers_apart(subject: Subject) -> Iterator[Issue]:
    """A range for transformers without a release that runs Gemma 4 under this vLLM."""
    asked = subject.profile.runtime.packages.get("transformers")
    working = subject.facts.transformers_working
    if asked and working and not _overlap(asked, working):
        message = f"is {asked}, and Gemma 4 runs under vLLM {subject.vllm} with transformers {working}"
        yield Issue(
            path=("runtime", "packages", "transformers"), message=message, fix=f"write '{working}', or leave it out"
        )


@rule("GS706", "warning")
def transformers_wider(subject: Subject) -> Iterator[Issue]:
    """A range for transformers that also takes releases that do not run Gemma 4 under this vLLM."""
    asked = subject.profile.runtime.packages.get("transformers")
    working = subject.facts.transformers_working
    if asked and working and _overlap(asked, working) and not _within(asked, working):
        message = f"{asked} takes releases outside {working}, with which Gemma 4 runs under vLLM {subject.vllm}"
        yield Issue(
            path=("runtime", "packages", "transformers"), message=message, fix=f"write '{working}', or leave it out"
        )


@rule("GS707", "error")
def transformers_for_mtp(subject: Subject) -> Iterator[Issue]:
    """A range for transformers that ends before Gemma 4's MTP head begins."""
    asked = subject.profile.runtime.packages.get("transformers")
    if asked and subject.method == "mtp" and not _overlap(asked, f">={ASSISTANTS_FROM}"):
        message = f"is {asked}, and Gemma 4's MTP head needs transformers {ASSISTANTS_FROM} or later"
        yield Issue(
            path=("runtime", "packages", "transformers"), message=message, fix=f"write '>={ASSISTANTS_FROM},<…'"
        )


@rule("GS709", "warning", any_release=True)
def package_of_suffix(subject: Subject) -> Iterator[Issue]:
    """suffix without its package (SpeculativeConfig._validate_suffix_decoding, every release)."""
    runtime = subject.profile.runtime
    named = {name.lower().replace("_", "-") for name in runtime.packages}
    if subject.method == "suffix" and not runtime.python and _SUFFIX not in named:
        message = f"suffix needs the package {_SUFFIX}, which vLLM does not bring, and stops without it"
        fix = f"add runtime.packages: {{{_SUFFIX}: '>=0.1.1,<0.2'}}, unless the image has it"
        yield Issue(path=("speculative", "method"), message=message, fix=fix)


@rule("GS710", "warning")
def architecture(subject: Subject) -> Iterator[Issue]:
    """A target that this vLLM has no model for, and a later one has."""
    latest = facts_for(newest())
    found = subject.target.architecture if subject.target else _UNIFIED if subject.is_unified else None
    if latest and found in latest.architectures - subject.facts.architectures:
        message = (
            f"vLLM {subject.vllm} has no model of its own for {found}; the table has it {spans('architecture', found)}"
        )
        yield Issue(path=("target", "model"), message=message, fix="run a release that has it")


def _overlap(one: str, other: str) -> bool:
    """Whether two ranges have a version in common; if they do, a border or a hair beside one is in both."""
    from packaging.specifiers import SpecifierSet

    both = SpecifierSet(f"{one},{other}")
    return any(both.contains(version, prereleases=True) for version in _borders(one, other))


def _within(one: str, other: str) -> bool:
    """Whether every version of one range is in the other."""
    from packaging.specifiers import SpecifierSet

    inner, outer = SpecifierSet(one), SpecifierSet(other)
    return not any(inner.contains(version) and not outer.contains(version) for version in _borders(one, other))


def _borders(*ranges: str) -> Iterator[Version]:
    """Versions around every border of some ranges, and one beyond them all."""
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
    """A version right below another, as 5.14.999 is below 5.15."""
    from packaging.version import Version

    parts = list(version.release)
    while parts and parts[-1] == 0:
        parts.pop()
    if parts:
        parts[-1] -= 1
        yield Version(".".join(map(str, [*parts, 999])))


RULES: Final = (
    moving_tag,
    two_vllms,
    transformers_apart,
    transformers_wider,
    transformers_for_mtp,
    package_of_suffix,
    architecture,
)
