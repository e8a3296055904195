"""GS208 to GS210: tokens that are accepted though the target would not say them."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.check.lint.rule import Issue, Subject, rule


@rule("GS208", "error")
def synthetic(subject: Subject) -> Iterator[Issue]:
    """Synthetic acceptance needs exactly one form, which matches the number of tokens."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "synthetic" or subject.runs("<0.20"):
        return
    rates, length, tokens = spec.synthetic_acceptance_rates, spec.synthetic_acceptance_length, subject.resolved.tokens
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
        effect = (
            "accepts tokens at random, for measurements"
            if method == "synthetic"
            else "accepts tokens that the target would not choose"
        )
        message = f"{method} {effect}, so answers differ from the target's own"
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
    tokens = subject.resolved.tokens
    if tokens < 2:
        message = "fly needs at least 2 tokens"
        yield Issue(path=("speculative", "num_speculative_tokens"), message=message, fix="draft 2 tokens or more")
    elif spec.fly_window_size and spec.fly_window_size >= tokens:
        message = f"is {spec.fly_window_size}, and must be smaller than num_speculative_tokens, {tokens}"
        yield Issue(path=("speculative", "fly_window_size"), message=message, fix=f"use {tokens - 1} or less")
