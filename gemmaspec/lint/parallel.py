"""GS2xx: several GPUs, and forced model runners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Role, Subject


@rule("GS205", "error")
def draft_parallelism(subject: Subject) -> Iterator[Issue]:
    """Under model runner v1, a draft model uses as many GPUs as the target."""
    spec = subject.profile.speculative
    target = subject.number("--tensor-parallel-size") or 1
    if not spec or subject.method != "draft_model" or subject.runner == "v2":
        return
    if spec.draft_tensor_parallel_size not in (None, target):
        message = (
            f"is {spec.draft_tensor_parallel_size} and the target's is {target}: model runner v1, which vLLM "
            f"{subject.vllm} uses here, requires them to be equal for draft_model"
        )
        yield Issue(
            path=("speculative", "draft_tensor_parallel_size"), message=message, fix=f"use {target}, or remove it"
        )


@rule("GS221", "error")
def heads(subject: Subject) -> Iterator[Issue]:
    """Attention heads, and those of keys and values, are split evenly (ModelConfig.verify_with_parallel_config)."""
    given, spec = subject.argument("--tensor-parallel-size"), subject.profile.speculative
    gpus = subject.number("--tensor-parallel-size") or 1
    if given and subject.target and subject.target.text.layers[0].heads % gpus:
        count = subject.target.text.layers[0].heads
        message = f"is {gpus}, and the target has {count} attention heads, which it does not divide"
        yield Issue(path=given.path, message=message, fix="use a number that divides both models' attention heads")
    drafts = (spec.draft_tensor_parallel_size if spec else None) or gpus
    if subject.draft and subject.draft.text.layers[0].heads % drafts:
        count = subject.draft.text.layers[0].heads
        message = f"has {count} attention heads, which its tensor parallel size does not divide: {drafts}"
        yield Issue(path=("draft", "model"), message=message, fix="use a tensor parallel size that divides them")
    yield from _cache_heads(subject, "target", gpus)
    yield from _cache_heads(subject, "draft", drafts)


def _cache_heads(subject: Subject, role: Role, gpus: int) -> Iterator[Issue]:
    """Yield a number of KV heads that can be neither split over the GPUs nor copied to them (Gemma4Attention)."""
    model = subject.checkpoint(role)
    if not model or model.text.layers[0].heads % gpus:
        return
    for count in sorted({layer.kv_heads for layer in model.text.layers}):
        if max(count, gpus) % min(count, gpus):
            message = f"has layers with {count} key and value heads, which do not fit {gpus} GPUs evenly"
            fix = "use a tensor parallel size that divides them, or a multiple of them"
            yield Issue(path=(role, "model"), message=message, fix=fix)


@rule("GS218", "error")
def pipeline(subject: Subject) -> Iterator[Issue]:
    """Pipeline parallelism and speculation, up to 0.29."""
    stages, method = (subject.number("--pipeline-parallel-size") or 1), subject.method
    if stages < 2 or not method or subject.runs(">=0.30") or method in ("ngram", "suffix", "draft_model"):
        return
    given = subject.argument("--pipeline-parallel-size")
    path = given.path if given else ("serve",)
    if method == "mtp":
        message = f"vLLM {subject.vllm} gives the draft the same stages, but the MTP head cannot be split into stages"
    elif method == "dflash" and subject.runner == "v2":
        message = f"vLLM {subject.vllm} rejects dflash with pipeline parallelism"
    elif method == "dspark":
        message = f"vLLM {subject.vllm} gives the draft the same stages, but a DSpark head cannot be split into stages"
    else:
        message = f"vLLM {subject.vllm} gives the draft the same stages, but only the last one drafts"
        yield Issue(
            path=path, message=message, fix="use tensor_parallel_size, or vLLM 0.30 or later", severity="warning"
        )
        return
    yield Issue(path=path, message=message, fix="use tensor_parallel_size, or vLLM 0.30 or later")


@rule("GS219", "error")
def expert_parallelism(subject: Subject) -> Iterator[Issue]:
    """0.30.0 gives a draft without experts the target's expert parallelism (create_draft_parallel_config)."""
    given = subject.argument("--enable-expert-parallel")
    if given and not given.negated and subject.profile.draft and subject.runs(">=0.30,<0.31"):
        message = f"vLLM {subject.vllm} requires experts in the draft too, but it has none"
        yield Issue(path=given.path, message=message, fix="remove it, or use a release other than 0.30.0")


@rule("GS220", "error")
def forced_runner(subject: Subject) -> Iterator[Issue]:
    """VLLM_USE_V2_MODEL_RUNNER requests a runner that does not support the profile."""
    path = ("env", "VLLM_USE_V2_MODEL_RUNNER")
    forced = subject.runner_input.forced
    if forced == "v2" and subject.runs(">=0.25") and subject.falls_back:
        message = f"requests model runner v2, but {subject.falls_back}"
        yield Issue(path=path, message=message, fix="remove it, so that vLLM uses v1")
    if forced == "v1" and subject.method == "dspark":
        yield Issue(path=path, message="requests model runner v1, which does not support dspark", fix="remove it")


RULES: Final = (
    draft_parallelism,
    heads,
    pipeline,
    expert_parallelism,
    forced_runner,
)
