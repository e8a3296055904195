"""GS2xx: method and draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

from gemmaspec.check.lint.rule import Issue, Role, Subject, rule
from gemmaspec.core.finding import Severity
from gemmaspec.core.profile.fields import LOCAL_PREFIXES, Speculative
from gemmaspec.core.releases.drafting import found_in_path, keeps_method, shortens

_OTHER_HEADS: Final = ("draft_model", "eagle", "eagle3", "dflash", "dflash2", "dspark", "medusa")
"""Methods that draft with something else than an MTP head."""
_METHODS: Final = frozenset(get_args(Speculative.model_fields["method"].annotation))
"""Methods that a profile can name."""


@rule("GS201", "error")
def detected_method(subject: Subject) -> Iterator[Issue]:
    """vLLM takes the method from the draft's path, even if another one is set."""
    path, method = subject.name("draft"), subject.resolved.asked_method
    if not path or not method or keeps_method(method, subject.vllm):
        return
    part, taken, _ = found_in_path(path, subject.vllm) or (None, None, None)
    if taken and taken not in (method, subject.resolved.method):
        message = f"vLLM {subject.vllm} finds {part!r} in the path {path} and drafts with {taken}, not {method}"
        local = path.startswith(LOCAL_PREFIXES) and subject.profile.image is not None
        if local:
            fix = "rename the folder"
        else:
            fix = "use a folder with another name for the draft"
        yield Issue(path=("draft", "model"), message=message, fix=fix, severity="warning" if local else None)


@rule("GS202", "warning")
def made_for_another_method(subject: Subject) -> Iterator[Issue]:
    """A head needs its own method; Google's -assistant checkpoints are MTP heads."""
    asked, path = subject.resolved.asked_method, ("speculative", "method")
    head = subject.resolved.draft.speculator if subject.resolved.draft else None
    runs_anyway = subject.resolved.method != asked
    if head and asked != head.method:
        if runs_anyway:
            does = f"; vLLM {subject.vllm} drafts with {head.method} anyway"
        else:
            does = ""
        message = f"{subject.name('draft')} is made for {head.method}{does}"
        severity: Severity = "note" if runs_anyway else "error"
        if (asked, head.method) == ("eagle", "eagle3") and not runs_anyway:
            message += ": as eagle it starts, but drafts from hidden states that it was not trained on"
            severity = "warning"
        yield Issue(path=path, message=message, fix=f"set method: {head.method}", severity=severity)
    elif not head and asked in _OTHER_HEADS and "assistant" in subject.name("draft").lower():
        if asked == "draft_model":
            stops = "has no model for it and stops"
        else:
            stops = f"does not draft with it as {asked}"
        does = "drafts with mtp anyway" if runs_anyway else stops
        message = f"{subject.name('draft')} looks like an MTP head; vLLM {subject.vllm} {does}"
        fix = "set method: mtp and use vLLM 0.21 or later"
        if runs_anyway:
            level: Severity = "note"
        else:
            if asked == "draft_model":
                level = "warning"
            else:
                level = "error"
        yield Issue(path=path, message=message, fix=fix, severity=level)


@rule("GS203", "error", of_gemma=True)
def method_for_gemma(subject: Subject) -> Iterator[Issue]:
    """A method that does not work for a Gemma 4 target in this release."""
    method = subject.resolved.method
    if method and method != "eagle" and not subject.resolved.facts.methods_named(method):
        drafting = {row.method for row in subject.resolved.facts.methods}
        known = ", ".join(sorted(drafting & _METHODS))
        message = f"with vLLM {subject.vllm}, {method} does not draft for Gemma 4"
        yield Issue(path=("speculative", "method"), message=message, fix=f"use another vLLM release, or one of {known}")


@rule("GS204", "error")
def head_missing(subject: Subject) -> Iterator[Issue]:
    """mtp without a draft looks for the head in the target, but Gemma 4's targets have none."""
    if subject.resolved.method == "mtp" and not subject.profile.draft:
        message = (
            "without a draft, vLLM looks for MTP layers in the target, but Gemma 4 has them in a separate checkpoint"
        )
        fix = "add draft: {model: google/gemma-4-…-it-assistant} of this target's size"
        yield Issue(path=("speculative", "method"), message=message, fix=fix)


@rule("GS212", "error")
def vocabulary(subject: Subject) -> Iterator[Issue]:
    """A draft model whose vocabulary differs from the target's."""
    spec, target, draft = subject.profile.speculative, subject.resolved.target, subject.resolved.draft
    if not spec or subject.resolved.method != "draft_model" or spec.use_heterogeneous_vocab or not target or not draft:
        return
    if target.text.vocab_size != draft.text.vocab_size:
        message = f"its vocabulary has {draft.text.vocab_size} tokens, the target's {target.text.vocab_size}"
        fix = "use a draft of the same family, or use_heterogeneous_vocab: true (vLLM 0.25 and later)"
        yield Issue(path=("draft", "model"), message=message, fix=fix)


@rule("GS213", "error")
def trained_steps(subject: Subject) -> Iterator[Issue]:
    """A head trained for n tokens drafts n tokens or a multiple."""
    tokens, steps = subject.resolved.tokens, _number(subject, "n_predict")
    if steps and subject.resolved.method in ("eagle", "eagle3", "mtp", "dflash") and tokens > steps and tokens % steps:
        message = f"is {tokens}; the draft was made for {steps} (n_predict), and vLLM accepts only multiples of that"
        path = ("speculative", "num_speculative_tokens")
        yield Issue(path=path, message=message, fix=f"use {tokens // steps * steps} or {(tokens // steps + 1) * steps}")


@rule("GS213", "error")
def block_size(subject: Subject) -> Iterator[Issue]:
    """DSpark heads draft a whole block; 0.26 and 0.27 reject fewer tokens, because the text would be garbled."""
    size, tokens = _number(subject, "dspark_block_size"), subject.resolved.tokens
    if size and subject.resolved.method == "dspark" and subject.runs(">=0.26,<0.28") and tokens < size:
        message = f"is {tokens}, but the head's block has {size} tokens"
        yield Issue(path=("speculative", "num_speculative_tokens"), message=message, fix=f"use {size}")


@rule("GS216", "error")
def context(subject: Subject) -> Iterator[Issue]:
    """A context that is longer than a checkpoint supports."""
    spec, limit = subject.profile.speculative, (subject.command.number("--max-model-len") or 0)
    longest = _made_for(subject, "target")
    if longest and limit > longest and subject.profile.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        message = f"is {limit}, but the target was made for {longest} tokens"
        yield Issue(path=("serve", "max_model_len"), message=message, fix=f"use {longest} or less")
    drafted = _made_for(subject, "draft")
    if drafted and spec and spec.max_model_len and spec.max_model_len > drafted:
        message = f"is {spec.max_model_len}, but the draft was made for {drafted} tokens"
        yield Issue(path=("speculative", "max_model_len"), message=message, fix=f"use {drafted} or less")


def _made_for(subject: Subject, role: Role) -> int | None:
    """Return the tokens that a model was made for; None where that is not known."""
    checkpoint = subject.checkpoint(role)
    if checkpoint:
        return checkpoint.text.max_position_embeddings
    return subject.longest.get(role)


@rule("GS216", "warning")
def shortened_context(subject: Subject) -> Iterator[Issue]:
    """0.33 lowers the target's context to the draft's (VllmConfig._limit_max_model_len_to_draft)."""
    spec, limit = subject.profile.speculative, (subject.command.number("--max-model-len") or 0)
    if not spec or not shortens(subject.resolved.method, subject.vllm, subject.resolved.runner):
        return
    drafted, draft = spec.max_model_len, subject.resolved.draft
    if not drafted and draft:
        drafted = draft.text.max_position_embeddings
    if drafted and limit > drafted:
        message = (
            f"the draft supports {drafted} tokens, and vLLM {subject.vllm} lowers max_model_len from {limit} to that"
        )
        if spec.max_model_len:
            key = ("speculative", "max_model_len")
        else:
            key = ("draft", "model")
        yield Issue(
            path=key, message=message, fix=f"set serve.max_model_len: {drafted}, so that the profile shows what runs"
        )


def _number(subject: Subject, key: str) -> int | None:
    """Return a whole number of the draft's config.json."""
    if subject.resolved.draft:
        value = subject.resolved.draft.config.get(key)
    else:
        value = None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
