"""GS2xx: how tokens are drafted, scheduled and accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Subject


@rule("GS206", "error")
def async_scheduling(subject: Subject) -> Iterator[Issue]:
    """Asynchronous scheduling is requested together with something that it does not support."""
    spec, given = subject.profile.speculative, subject.argument("--async-scheduling")
    if not spec or not given or given.negated or (subject.runs(">=0.33") and subject.runner == "v2"):
        return
    if spec.disable_padded_drafter_batch:
        refused = "disable_padded_drafter_batch"
    elif spec.method in ("ngram", "suffix"):
        refused = spec.method
    else:
        return
    message = f"vLLM {subject.vllm} cannot schedule asynchronously with {refused}"
    yield Issue(path=given.path, message=message, fix="remove async_scheduling, so that vLLM decides")


@rule("GS207", "note")
def unpadded_batch(subject: Subject) -> Iterator[Issue]:
    """An unpadded drafter batch switches asynchronous scheduling off."""
    spec = subject.profile.speculative
    if spec and spec.disable_padded_drafter_batch and subject.switched("--async-scheduling") is None:
        message = "with an unpadded drafter batch vLLM switches asynchronous scheduling off"
        yield Issue(
            path=("speculative", "disable_padded_drafter_batch"), message=message, fix="remove it unless it is faster"
        )


@rule("GS208", "error")
def synthetic(subject: Subject) -> Iterator[Issue]:
    """Synthetic acceptance needs exactly one form, which matches the number of tokens."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "synthetic" or subject.runs("<0.20"):
        return
    rates, length, tokens = spec.synthetic_acceptance_rates, spec.synthetic_acceptance_length, subject.tokens
    if (rates is None) == (length is None):
        path, message = "rejection_sample_method", "synthetic needs exactly one of the two forms of acceptance"
    elif rates is not None and len(rates) != tokens:
        path, message = "synthetic_acceptance_rates", f"has {len(rates)} rates for {tokens} tokens"
    elif rates is not None and rates != sorted(rates, reverse=True):
        path, message = "synthetic_acceptance_rates", "a rate is larger than the one before it"
    elif length is not None and length > tokens + 1:
        path, message = "synthetic_acceptance_length", f"is {length:g}, and {tokens} tokens give at most {tokens + 1}"
    else:
        return
    fix = "set synthetic_acceptance_rates, one decreasing rate per token, or synthetic_acceptance_length"
    yield Issue(path=("speculative", path), message=message, fix=fix)


@rule("GS209", "warning", any_release=True)
def lossy(subject: Subject) -> Iterator[Issue]:
    """Acceptance that changes the target's answers."""
    spec = subject.profile.speculative
    method = spec.rejection_sample_method if spec else None
    if method in ("synthetic", "fly"):
        said = (
            "accepts tokens at random, for measurements"
            if method == "synthetic"
            else "accepts tokens that the target would not choose"
        )
        message = f"{method} {said}, so answers differ from the target's own"
        yield Issue(
            path=("speculative", "rejection_sample_method"),
            message=message,
            fix="remove it and its keys to serve users",
        )


@rule("GS210", "error")
def fly(subject: Subject) -> Iterator[Issue]:
    """FLy needs acceptances after a token (SpeculativeConfig._verify_args, 0.33.0)."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "fly":
        return
    tokens = subject.tokens
    if tokens < 2:
        message = "fly needs at least 2 tokens"
        yield Issue(path=("speculative", "num_speculative_tokens"), message=message, fix="draft 2 tokens or more")
    elif spec.fly_window_size and spec.fly_window_size >= tokens:
        message = f"is {spec.fly_window_size}, and must be smaller than num_speculative_tokens, {tokens}"
        yield Issue(path=("speculative", "fly_window_size"), message=message, fix=f"use {tokens - 1} or less")


@rule("GS211", "error")
def different_vocabularies(subject: Subject) -> Iterator[Issue]:
    """Drafting over two vocabularies is always greedy."""
    spec = subject.profile.speculative
    if not spec or not spec.use_heterogeneous_vocab:
        return
    for key, wrong in (
        ("draft_sample_method", spec.draft_sample_method not in (None, "greedy")),
        ("use_local_argmax_reduction", bool(spec.use_local_argmax_reduction) and subject.runs(">=0.33")),
    ):
        if wrong:
            message = f"vLLM {subject.vllm} does not support it together with use_heterogeneous_vocab"
            yield Issue(path=("speculative", key), message=message, fix="remove it")


@rule("GS215", "error")
def adaptive_verification(subject: Subject) -> Iterator[Issue]:
    """Adaptive verification is for DSpark in 0.28 and 0.29, and needs the draft's logits from 0.30 on."""
    spec = subject.profile.speculative
    if not spec or not spec.enable_adaptive_verification or spec.method == "dspark":
        return
    if subject.runs(">=0.28,<0.30"):
        message = f"vLLM {subject.vllm} supports adaptive verification only with dspark"
    elif subject.runs(">=0.30") and spec.use_local_argmax_reduction:
        message = "it needs the draft's logits, which use_local_argmax_reduction does not gather"
    else:
        return
    yield Issue(path=("speculative", "enable_adaptive_verification"), message=message, fix="remove it")


RULES: Final = (
    async_scheduling,
    unpadded_batch,
    synthetic,
    lossy,
    fly,
    different_vocabularies,
    adaptive_verification,
)
