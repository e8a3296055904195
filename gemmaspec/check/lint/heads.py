"""GS235, GS80x: heads of another size than the target or for another kind of it, and a head's list of ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Role, Subject, rule
from gemmaspec.core import draft_ids
from gemmaspec.core.checkpoint.sizes import SIZES, is_other_family

HEADS: Final = frozenset({"mtp", "eagle3", "dflash", "dspark"})
"""Methods whose draft is a head trained for one target."""

_SIZE: Final = re.compile(r"(?<![a-z0-9])(e?[0-9]{1,3}b)(?:[-_]?(a[0-9]{1,2}b))?(?![a-z0-9])", re.IGNORECASE)

_IDS_FROM: Final = ">=0.29"
"""The releases that the patch mtp-draft-ids is for."""

_ROLES: Final[tuple[Role, ...]] = ("target", "draft")

_INSTRUCT: Final = re.compile(r"(?<![a-z0-9])it(?![a-z0-9])", re.IGNORECASE)

_GOOGLE: Final = re.compile(r"gemma-?4", re.IGNORECASE)


@rule("GS801", "warning", any_release=True)
def instruct_head_on_base(subject: Subject) -> Iterator[Issue]:
    """A head trained for the -it model, with the base model as the target."""
    if subject.resolved.method not in HEADS or not _INSTRUCT.search(subject.called("draft")):
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
    if _GOOGLE.search(subject.called("draft")) and is_other_family(subject.called("target")):
        message = f"drafts for Gemma 4, and {subject.name('target')} is another family of models"
        fix = "use a Gemma 4 target, or remove the draft (--no-spec)"
        yield Issue(path=("draft", "model"), message=message, fix=fix)
        return
    if subject.resolved.method not in HEADS:
        return
    target, draft = subject.resolved.target, subject.resolved.draft
    if draft and draft.speculator:
        width = draft.speculator.target_hidden_size
    else:
        width = None
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
    """A model that no rule knows: another family, or a Gemma 4 whose name says no known size."""
    if subject.is_other_family:
        message = f"{subject.called('target')} is another family of models, so the rules about Gemma 4 were not checked"
        fix = "read the model's own card: its parsers, its template and its draft"
        yield Issue(path=("target", "model"), message=message, fix=fix)
    for role in _ROLES:
        name, size = subject.called(role), _size(subject, role)
        if subject.checkpoint(role) or not _GOOGLE.search(name) or size in SIZES:
            continue
        if size:
            what = f"names {size}, which is not a size of Gemma 4 known here"
        else:
            what = "names no size of Gemma 4"
        message = f"{name} {what} ({', '.join(SIZES)}): rules about its size, windows and experts were not checked"
        yield Issue(path=(role, "model"), message=message, fix="add --models, which reads its config.json")


@rule("GS235", "error")
def listed_ids(subject: Subject) -> Iterator[Issue]:
    """A list of ids (`draft.ids`) that cannot be read, or that this draft or this vLLM cannot take."""
    draft = subject.profile.draft
    if not draft or not draft.ids:
        return
    path, without = ("draft", "ids"), "remove draft.ids"
    if unread := subject.here.get("ids"):
        yield Issue(path=path, message=unread, fix="gemmaspec bench PROFILE --save-ids FILE writes one")
    if subject.resolved.method != "mtp":
        message = (
            f"only an assistant (method mtp) takes a list of ids, and the method is {subject.resolved.method or 'none'}"
        )
        yield Issue(path=path, message=message, fix=without)
    elif not subject.runs(_IDS_FROM):
        message = f"vLLM {subject.vllm} has no head that the patch {draft_ids.PATCH} fits; it is for {_IDS_FROM}"
        yield Issue(path=path, message=message, fix=f"{without}, or use vLLM 0.29 or later")
    elif _scores_few(subject):
        message = "this assistant scores few ids already, by centroids, and its start would stop"
        yield Issue(path=path, message=message, fix=without)
    count = subject.here.get("ids count", "0")
    if subject.resolved.target and int(count) > subject.resolved.target.text.vocab_size // 2:
        message = f"lists {int(count):,} of {subject.resolved.target.text.vocab_size:,} ids, which saves little"
        yield Issue(path=path, message=message, fix="list fewer", severity="note")


def _scores_few(subject: Subject) -> bool:
    """Return whether the assistant has centroids: by its configuration, else by the sizes that have them."""
    if subject.resolved.draft and subject.resolved.draft.speculator:
        return subject.resolved.draft.speculator.scored_tokens is not None
    return _size(subject, "draft") in ("E2B", "E4B")


def _is_base(subject: Subject) -> bool:
    """Return whether the target is a base model: without a chat template, or Google's own without -it."""
    if subject.resolved.target and subject.resolved.target.has_chat_template is not None:
        return not subject.resolved.target.has_chat_template
    name = subject.called("target")
    of_google = (subject.name("target") or "").lower().startswith("google/")  # others leave -it out of names of theirs
    return of_google and bool(_GOOGLE.search(name) and _SIZE.search(name)) and not _INSTRUCT.search(name)


def _size(subject: Subject, role: Role) -> str | None:
    """Return the size in a model's name, as E2B or 26B-A4B."""
    size = _SIZE.search(subject.called(role))
    if size:
        return "-".join(filter(None, size.groups())).upper()
    return None
