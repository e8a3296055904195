"""GS6xx, GS7xx and GS9xx: chat, which vLLM and which packages run it, and files of this machine."""

from __future__ import annotations

import difflib
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
    return not any(inner.contains(version) and not outer.contains(version) for version in _borders(span, other))


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


@rule("GS601", "warning", any_release=True, of_gemma=True)
def thoughts_leak(subject: Subject) -> Iterator[Issue]:
    """Thinking is on, but nothing removes the reasoning from the answer."""
    chat = subject.profile.chat
    if chat.template_kwargs.get("enable_thinking") is True and not subject.command.value("--reasoning-parser"):
        message = (
            "thinking is on without a reasoning parser, so answers contain the reasoning and its <|channel> markers"
        )
        fix = "add chat.reasoning_parser: gemma4"
        yield Issue(path=("chat", "template_kwargs", "enable_thinking"), message=message, fix=fix)


@rule("GS601", "note", any_release=True, of_gemma=True)
def thoughts_on_request(subject: Subject) -> Iterator[Issue]:
    """Thinking is off unless a request turns it on; then nothing removes the reasoning from the answer."""
    if "enable_thinking" not in subject.profile.chat.template_kwargs and not subject.command.value(
        "--reasoning-parser"
    ):
        message = (
            "there is no reasoning parser, so a request that turns thinking on gets reasoning and markers in its answer"
        )
        fix = "add chat.reasoning_parser: gemma4, or set chat.template_kwargs: {enable_thinking: false}"
        yield Issue(path=("chat",), message=message, fix=fix)


@rule("GS603", "warning", any_release=True, of_gemma=True)
def foreign_parser(subject: Subject) -> Iterator[Issue]:
    """A parser for another model's markers."""
    for flag in ("--reasoning-parser", "--tool-call-parser"):
        given = subject.command.argument(flag)
        if given and given.value and given.value != "gemma4":
            message = f"{given.value!r} does not recognize the markers that Gemma 4 writes"
            yield Issue(path=given.path, message=message, fix="use gemma4")


@rule("GS604", "note", any_release=True, of_gemma=True)
def tools_without_template(subject: Subject) -> Iterator[Issue]:
    """Tool calls with a template that may not write tools in Gemma 4's form."""
    chat = subject.profile.chat
    if chat.tool_call_parser == "gemma4" and not chat.template:
        message = "tool calls depend on the template, but the checkpoint's own is used, which was not checked"
        yield Issue(path=_TOOLS, message=message, fix="add chat.template: gemma4, which matches the vLLM release")


@rule("GS606", "note", any_release=True)
def no_tool_parser(subject: Subject) -> Iterator[Issue]:
    """No tool call parser: what agents send is refused."""
    if not subject.command.value("--tool-call-parser"):
        message = "there is no tool call parser, so vLLM answers agents, whose requests bring tools, with HTTP 400"
        of_gemma = "add chat: {tool_call_parser: gemma4, template: gemma4}"
        if subject.is_other_family:
            fix = "name the model's own as chat.tool_call_parser"
        else:
            fix = of_gemma
        yield Issue(path=("chat",), message=message, fix=fix)


_TOOLS: Final = ("chat", "tool_call_parser")


_GGUF: Final = re.compile(r"(?<![a-z0-9])gguf(?![a-z0-9])", re.IGNORECASE)


@rule("GS901", "warning", any_release=True)
def emptied(subject: Subject) -> Iterator[Issue]:
    """A key without a value, which removes the inherited value."""
    for key in subject.emptied:
        message = "is empty, which removes the inherited value"
        yield Issue(
            path=tuple(key.split(".")), message=message, fix="write null if that is intended, or remove the line"
        )


@rule("GS902", "warning", any_release=True)
def model_folder(subject: Subject) -> Iterator[Issue]:
    """A model's folder that is missing on this machine, or has no config.json."""
    for role in ("target", "draft"):
        if subject.here.get(role) == "missing":
            fix = "correct the path, unless the profile is for another machine"
            yield Issue(path=(role, "model"), message=f"missing folder {subject.name(role)}", fix=fix)
        elif subject.here.get(role) == "no config":
            message = f"{subject.name(role)} has no config.json, so it is not a model"
            yield Issue(
                path=(role, "model"), message=message, fix="name the folder that contains config.json and safetensors"
            )


@rule("GS902", "error", any_release=True)
def model_file(subject: Subject) -> Iterator[Issue]:
    """A model that is a file, as GGUF is: a model is a folder with config.json and safetensors."""
    for role in ("target", "draft"):
        is_file = subject.here.get(role) == "file" or subject.name(role).lower().endswith(".gguf")
        if is_file or _GGUF.search(subject.called(role)):
            if is_file:
                what = "is a file"
            else:
                what = "is named as a set of GGUF files"
            message = f"{subject.name(role)} {what}, but a model is a folder with config.json and safetensors"
            yield Issue(
                path=(role, "model"), message=message, fix="name that folder, or a model of the Hub (owner/name)"
            )
    if (subject.profile.serve.load_format or "").lower() == "gguf":
        message = "GGUF files are not served here: a model is a folder with config.json and safetensors"
        yield Issue(path=("serve", "load_format"), message=message, fix="remove it, and name a model of the Hub")


@rule("GS904", "error", any_release=True)
def template_file(subject: Subject) -> Iterator[Issue]:
    """A chat template that is missing or out of bounds."""
    template = subject.profile.chat.template
    if template and subject.here.get("template") == "outside":
        yield Issue(
            path=("chat", "template"),
            message=f"the template {template} is outside of the profile's folder",
            fix="copy it there, or type it: --set chat.template=…",
        )
    if template and subject.here.get("template") == "missing":
        near = difflib.get_close_matches(template, ["gemma4", *subject.templates], n=1, cutoff=0.6)
        if near:
            fix = f"did you mean {near[0]}?"
        else:
            fix = "use gemma4, or the path of a file"
        yield Issue(path=("chat", "template"), message=f"unknown template {template}", fix=fix)
