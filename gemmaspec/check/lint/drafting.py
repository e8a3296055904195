"""GS2xx: how tokens are drafted and scheduled."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.core.releases.drafting import HEAD_FORMATS


@rule("GS206", "error")
def async_scheduling(subject: Subject) -> Iterator[Issue]:
    """Asynchronous scheduling is requested together with something that it does not support."""
    spec, given = subject.profile.speculative, subject.command.argument("--async-scheduling")
    if not spec or not given or given.negated or (subject.runs(">=0.33") and subject.resolved.runner == "v2"):
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
    if spec and spec.disable_padded_drafter_batch and subject.command.switched("--async-scheduling") is None:
        message = "with an unpadded drafter batch vLLM switches asynchronous scheduling off"
        yield Issue(
            path=("speculative", "disable_padded_drafter_batch"), message=message, fix="remove it unless it is faster"
        )


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


@rule("GS803", "error", any_release=True)
def sampling_refused(subject: Subject) -> Iterator[Issue]:
    """Defaults that vLLM rejects under speculation (SamplingParams._validate_spec_decode, from 0.19.1)."""
    if subject.resolved.method:
        given = subject.command.argument("--override-generation-config")
    else:
        given = None
    defaults = _json(given.value if given else None)
    refused = [key for key in ("min_p", "logit_bias") if defaults.get(key)]
    if given and refused:
        message = (
            f"sets {' and '.join(refused)} for every request, and under speculation vLLM answers those with HTTP 400"
        )
        yield Issue(path=given.path, message=message, fix="remove it, or leave the draft out (--no-spec)")


@rule("GS804", "warning", of_gemma=True)
def json_under_concurrency(subject: Subject) -> Iterator[Issue]:
    """Broken JSON of concurrent requests under MTP (vLLM pull request 44993; fixed in 0.26.0, not in 0.24.0)."""
    if subject.resolved.method != "mtp" or subject.runs(">=0.26") or subject.command.number("--max-num-seqs") == 1:
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
    if subject.resolved.draft:
        declared = subject.resolved.draft.config.get("speculators_model_type")
    else:
        declared = None
    name = subject.called("draft").lower()
    for kind, called, since in HEAD_FORMATS:
        if (declared == kind if declared else name.endswith(called)) and not subject.runs(f">={since}"):
            message = f"is a head in the format {kind}, which vLLM {subject.vllm} does not support"
            yield Issue(path=("draft", "model"), message=message, fix=f"use vLLM {since} or later")


def _json(text: str | None) -> dict[str, object]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    if isinstance(content, dict):
        return content
    return {}
