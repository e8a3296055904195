"""GS8xx: heads that draft for one target, and what requests cannot use under speculation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from gemmaspec.checkpoint.sizes import SIZES
from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Role, Subject
from gemmaspec.releases.drafting import HEAD_FORMATS

HEADS: Final = frozenset({"mtp", "eagle3", "dflash", "dspark"})
"""Methods whose draft is a head trained for one target."""
_SIZE: Final = re.compile(r"(?<![a-z0-9])(e?[0-9]{1,3}b)(?:[-_]?(a[0-9]{1,2}b))?(?![a-z0-9])", re.IGNORECASE)
_ROLES: Final[tuple[Role, ...]] = ("target", "draft")
_INSTRUCT: Final = re.compile(r"(?<![a-z0-9])it(?![a-z0-9])", re.IGNORECASE)
_OTHERS: Final = re.compile(
    r"(?<![a-z0-9])(?:(?:code|pali|shield|med|t5|function)?gemma[-_]?(?:[123](?:n|[-_.:]|$)|[0-9]{1,2}b)|qwen|qwq|llama|mi[sn]tral"
    r"|mixtral|devstral|phi[-_]?[0-9]|deepseek|gpt[-_]oss|glm|granite|kimi|nemotron|olmo|falcon|minimax|gemma(?:[-_]it|$))",
    re.IGNORECASE,
)
"""Families of other models, at the beginning of a word."""
_GOOGLE: Final = re.compile(r"gemma-?4", re.IGNORECASE)


@rule("GS801", "warning", any_release=True)
def instruct_head_on_base(subject: Subject) -> Iterator[Issue]:
    """A head trained for the -it model, with the base model as the target."""
    if subject.method not in HEADS or not _INSTRUCT.search(subject.called("draft")):
        return
    if _is_base(subject):
        message = (
            f"{subject.called('draft')} was made for the -it model, but {subject.name('target')} looks like the base "
            "model. Published for such a pair on a DGX Spark: 25 tokens/s, 41 without a draft"
        )
        yield Issue(
            path=("draft", "model"), message=message, fix="serve the -it target, or remove the draft (--no-spec)"
        )


@rule("GS802", "error", any_release=True)
def head_of_another_size(subject: Subject) -> Iterator[Issue]:
    """A head for another size of Gemma 4, whose hidden states or KV cache it reads, or for another family."""
    called = subject.called("target")
    if _GOOGLE.search(subject.called("draft")) and _OTHERS.search(called) and not _GOOGLE.search(called):
        message = f"drafts for Gemma 4, and {subject.name('target')} is another family of models"
        fix = "use a Gemma 4 target, or remove the draft (--no-spec)"
        yield Issue(path=("draft", "model"), message=message, fix=fix)
        return
    if subject.method not in HEADS:
        return
    target, draft = subject.target, subject.draft
    width = draft.speculator.target_hidden_size if draft and draft.speculator else None
    if target and width:
        if width != target.text.hidden_size:
            message = f"is made for hidden states of {width}, but the target's have {target.text.hidden_size}"
            yield Issue(path=("draft", "model"), message=message, fix="use the head that was made for this target")
        return
    mine, other = _size(subject, "target"), _size(subject, "draft")
    if mine and other and mine != other:
        message = f"is named as a head for {other}, but the target is {mine}"
        yield Issue(path=("draft", "model"), message=message, fix=f"use the head for {mine}", severity="warning")


@rule("GS809", "note", any_release=True)
def unknown_size(subject: Subject) -> Iterator[Issue]:
    """A Gemma 4 whose size no rule knows by name: rules about sizes, windows and experts then check nothing."""
    for role in _ROLES:
        name, size = subject.called(role), _size(subject, role)
        if subject.checkpoint(role) or not _GOOGLE.search(name) or size in SIZES:
            continue
        what = f"names {size}, which is not a size of Gemma 4 known here" if size else "names no size of Gemma 4"
        message = f"{name} {what} ({', '.join(SIZES)}): rules about its size, windows and experts were not checked"
        yield Issue(path=(role, "model"), message=message, fix="add --models, which reads its config.json")


@rule("GS803", "error", any_release=True)
def sampling_refused(subject: Subject) -> Iterator[Issue]:
    """Defaults that vLLM rejects under speculation (SamplingParams._validate_spec_decode, from 0.19.1)."""
    given = subject.argument("--override-generation-config") if subject.method else None
    defaults = _json(given.value if given else None)
    refused = [key for key in ("min_p", "logit_bias") if defaults.get(key)]
    if given and refused:
        message = (
            f"sets {' and '.join(refused)} for every request, and under speculation vLLM answers those with HTTP 400"
        )
        yield Issue(path=given.path, message=message, fix="remove it, or leave the draft out (--no-spec)")


@rule("GS804", "warning")
def json_under_concurrency(subject: Subject) -> Iterator[Issue]:
    """Broken JSON of concurrent requests under MTP (vLLM pull request 44993; fixed in 0.26.0, not in 0.24.0)."""
    if subject.method != "mtp" or subject.runs(">=0.26") or subject.number("--max-num-seqs") == 1:
        return
    message = (
        f"with vLLM {subject.vllm} JSON by schema comes out broken when several requests draft at once: measured with "
        "an E2B and its assistant 75 to 100 % of answers for 8 to 32 requests"
    )
    fix = "use vLLM 0.26 or later, or set serve.max_num_seqs: 1 if requests ask for JSON"
    yield Issue(path=("speculative", "method"), message=message, fix=fix)


@rule("GS807", "error")
def unknown_format(subject: Subject) -> Iterator[Issue]:
    """A head whose format this vLLM does not support yet."""
    declared = subject.draft.config.get("speculators_model_type") if subject.draft else None
    name = subject.called("draft").lower()
    for kind, called, since in HEAD_FORMATS:
        if (declared == kind if declared else name.endswith(called)) and not subject.runs(f">={since}"):
            message = f"is a head in the format {kind}, which vLLM {subject.vllm} does not support"
            yield Issue(path=("draft", "model"), message=message, fix=f"use vLLM {since} or later")


def _is_base(subject: Subject) -> bool:
    """Return whether the target is a base model: without a chat template, or named Gemma 4 without -it."""
    if subject.target and subject.target.has_chat_template is not None:
        return not subject.target.has_chat_template
    name = subject.called("target")
    return bool(_GOOGLE.search(name) and _SIZE.search(name)) and not _INSTRUCT.search(name)


def _size(subject: Subject, role: Role) -> str | None:
    """Return the size in a model's name, as E2B or 26B-A4B."""
    found = _SIZE.search(subject.called(role))
    return "-".join(filter(None, found.groups())).upper() if found else None


def _json(text: str | None) -> dict[str, object]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


RULES: Final = (
    instruct_head_on_base,
    head_of_another_size,
    unknown_size,
    sampling_refused,
    json_under_concurrency,
    unknown_format,
)
