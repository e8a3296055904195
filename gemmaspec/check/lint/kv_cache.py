"""GS3xx: groups and formats of the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Path, Subject, rule, set_at
from gemmaspec.core.releases.items import largest_item
from gemmaspec.core.resolved.answer import known

_HYBRID: Final[Path] = ("serve", "disable_hybrid_kv_cache_manager")


@rule("GS301", "error")
def several_groups(subject: Subject) -> Iterator[Issue]:
    """A draft model in several KV cache groups; model runner v1 supports one."""
    if subject.resolved.method != "draft_model" or not subject.resolved.hybrid or subject.resolved.runner == "v2":
        return
    if subject.runs("<0.20") or _one_kind_of_layer(subject):
        return  # a patch does it there, see GS401; or there is one group anyway
    message = (
        "with the hybrid KV cache manager on, the draft's sliding and full layers are in several KV cache groups, "
        f"and model runner v1, which vLLM {subject.vllm} uses here, supports only one"
    )
    known = subject.windows("draft") is not None  # another draft may have one kind of layers
    fix = "set serve.disable_hybrid_kv_cache_manager: true"
    yield Issue(path=_HYBRID, message=message, fix=fix, severity=None if known else "warning")


@rule("GS302", "warning", of_gemma=True)
def many_groups(subject: Subject) -> Iterator[Issue]:
    """An EAGLE-3 head for Gemma 4 with the hybrid manager on, which makes one KV cache group per layer."""
    if subject.resolved.method == "eagle3" and subject.resolved.hybrid:
        message = (
            "with the hybrid KV cache manager on, the head's layer makes vLLM put every layer into a KV cache group of "
            "its own (61 for a 31B), for each of which it builds metadata at every step"
        )
        fix = "set serve.disable_hybrid_kv_cache_manager: true, and compare, because it needs more KV cache"
        yield Issue(path=_HYBRID, message=message, fix=fix)


@rule("GS303", "warning")
def fp8_with_mtp(subject: Subject) -> Iterator[Issue]:
    """An MTP head reads the target's FP8 cache without its scales."""
    if subject.resolved.method != "mtp" or (subject.runs(">=0.31") and subject.resolved.runner == "v2"):
        return
    if subject.resolved.target:
        quantization = subject.resolved.target.quantization
    else:
        quantization = None
    if quantization:
        declared = (quantization.kv_cache or "").lower()
    else:
        declared = ""
    dtype = subject.command.value("--kv-cache-dtype") or "auto"
    if not (declared if dtype == "auto" else dtype).startswith("fp8") or (subject.resolved.target and not declared):
        return
    message = (
        f"under model runner {subject.resolved.runner} of vLLM {subject.vllm} the MTP head reads the target's FP8 KV "
        "cache without the scales that a calibrated checkpoint brings, so few tokens are accepted"
    )
    given = subject.command.argument("--kv-cache-dtype")
    fix = "set serve.kv_cache_dtype: bfloat16, or use vLLM 0.31 or later with model runner v2"
    yield Issue(path=set_at(given, ("serve", "kv_cache_dtype")), message=message, fix=fix)


@rule("GS308", "error")
def fast_prefill(subject: Subject) -> Iterator[Issue]:
    """Fast prefill gives wrong logits for prompt tokens, and heads need them (vllm/config/vllm.py, every release)."""
    given = subject.command.argument("--kv-sharing-fast-prefill")
    heads = ("eagle", "eagle3", "mtp", *(("dflash",) if subject.runs(">=0.20") else ()))
    if given and not given.negated and subject.resolved.method in (*heads, "dspark"):
        message = f"vLLM rejects kv_sharing_fast_prefill together with {subject.resolved.method}"
        yield Issue(path=given.path, message=message, fix="remove it")


@rule("GS309", "error")
def batch_below_one_item(subject: Subject) -> Iterator[Issue]:
    """A target with bidirectional attention to images, and a batch that cannot hold the largest one."""
    limits, batch = subject.command.argument("--limit-mm-per-prompt"), known(subject.resolved.batch)
    whole = subject.resolved.whole_items
    if whole is False or batch is None or (limits and limits.path[-1] != "limit_mm_per_prompt"):
        return
    if subject.command.argument("--mm-processor-kwargs"):
        return  # max_soft_tokens: an image may be of another size
    item = largest_item(subject.profile.serve.limit_mm_per_prompt or {})
    if item and batch < item.tokens:
        given = subject.command.argument("--max-num-batched-tokens")
        what = "is" if given else "comes to"
        message = (
            f"{what} {batch}, and one {item.modality} of the target takes {item.tokens}, which vLLM does not split"
        )
        fix = f"use {item.tokens} or more, or set serve.language_model_only: true if you serve only text"
        path = set_at(given, ("serve", "max_num_batched_tokens"))
        sure = subject.resolved.target is not None and whole is True
        yield Issue(path=path, message=message, fix=fix, severity="error" if sure else "warning")


def _one_kind_of_layer(subject: Subject) -> bool:
    draft = subject.resolved.draft
    return draft is not None and len({layer.kind for layer in draft.text.layers}) == 1
