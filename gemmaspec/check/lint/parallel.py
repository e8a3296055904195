"""GS2xx and GS8xx: several GPUs and machines, and forced model runners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Role, Subject, rule, set_at
from gemmaspec.core.resolved.stages import PARTITION, BadPartition


@rule("GS205", "error")
def draft_parallelism(subject: Subject) -> Iterator[Issue]:
    """Under model runner v1, a draft model uses as many GPUs as the target."""
    spec = subject.profile.speculative
    target = subject.command.number("--tensor-parallel-size") or 1
    if not spec or subject.resolved.method != "draft_model" or subject.resolved.runner == "v2":
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
    given, spec = subject.command.argument("--tensor-parallel-size"), subject.profile.speculative
    gpus = subject.command.number("--tensor-parallel-size") or 1
    if given and subject.resolved.target and subject.resolved.target.text.layers[0].heads % gpus:
        count = subject.resolved.target.text.layers[0].heads
        message = f"is {gpus}, and the target has {count} attention heads, which it does not divide"
        yield Issue(path=given.path, message=message, fix="use a number that divides both models' attention heads")
    drafts = (spec.draft_tensor_parallel_size if spec else None) or gpus
    if subject.resolved.draft and subject.resolved.draft.text.layers[0].heads % drafts:
        count = subject.resolved.draft.text.layers[0].heads
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
    """A target or a method that vLLM cannot serve in pipeline stages."""
    because = subject.resolved.not_in_stages
    if because:
        given = subject.command.argument("--pipeline-parallel-size")
        message = f"is {subject.resolved.stages}: {because}"
        yield Issue(path=set_at(given, ("serve",)), message=message, fix=_instead_of_stages(subject))


def _instead_of_stages(subject: Subject) -> str:
    """Return the options that start the same on as many GPUs without stages, or in stages without a draft."""
    resolved = subject.resolved
    one_stage = "--set serve.pipeline_parallel_size=null"
    if subject.shares_kv("target") or resolved.device.cpu:
        return f"{one_stage}: such a model fits on one"
    gpus = resolved.parallel.tensor * resolved.stages
    heads = resolved.target.text.layers[0].heads if resolved.target else gpus
    while heads % gpus:
        gpus -= 1
    return f"split it with {one_stage} --set serve.tensor_parallel_size={gpus}, or keep the stages with --no-spec"


@rule("GS218", "error")
def partition(subject: Subject) -> Iterator[Issue]:
    """VLLM_PP_LAYER_PARTITION that does not divide the target's layers (get_pp_indices, every release)."""
    try:
        _ = subject.resolved.layers_by_stage
    except BadPartition as error:
        fix = "one number of layers for each stage, which together are all of the target's; or remove it"
        yield Issue(path=("env", PARTITION), message=str(error), fix=fix)


@rule("GS219", "error")
def expert_parallelism(subject: Subject) -> Iterator[Issue]:
    """0.30.0 gives a draft without experts the target's expert parallelism (create_draft_parallel_config)."""
    given = subject.command.argument("--enable-expert-parallel")
    if given and not given.negated and subject.profile.draft and subject.runs(">=0.30,<0.31"):
        message = f"vLLM {subject.vllm} requires experts in the draft too, but it has none"
        yield Issue(path=given.path, message=message, fix="remove it, or use a release other than 0.30.0")


@rule("GS220", "error")
def forced_runner(subject: Subject) -> Iterator[Issue]:
    """VLLM_USE_V2_MODEL_RUNNER requests a runner that does not support the profile."""
    path = ("env", "VLLM_USE_V2_MODEL_RUNNER")
    forced = subject.resolved.runner_input.forced
    if forced == "v2" and subject.runs(">=0.25") and subject.resolved.falls_back:
        message = f"requests model runner v2, but {subject.resolved.falls_back}"
        yield Issue(path=path, message=message, fix="remove it, so that vLLM uses v1")
    if forced == "v1" and subject.resolved.method == "dspark":
        yield Issue(path=path, message="requests model runner v1, which does not support dspark", fix="remove it")


_FP8_CACHE_FAILS: Final = "<0.20"
"""Releases in which FP8 KV caches were seen to fail on two machines: "KV cache specs for the same layer are different
across workers" (the recipe for two DGX Sparks of vLLM's own collection, 0.19.1). Later ones were not tried by anybody
whose report is known here."""

_DENSE_WITHOUT_EXTERNAL_DP: Final = ">=0.21"
"""Releases that refuse external data parallelism for a model without experts (ParallelConfig in
vllm/config/parallel.py, from 0.21.0): "Non-MoE models do not support external data parallel mode"."""


@rule("GS227", "error", any_release=True)
def api_servers_of_a_headless_rank(subject: Subject) -> Iterator[Issue]:
    """`--headless` has no API server (run_headless in vllm/entrypoints/cli/serve.py, every release)."""
    headless, count = subject.command.argument("--headless"), subject.command.argument("--api-server-count")
    if headless and count and not headless.negated and (subject.command.number("--api-server-count") or 0) > 0:
        message = f"--headless starts no API server, and vLLM stops at --api-server-count {count.value}"
        yield Issue(path=count.path, message=message, fix="remove it")


@rule("GS228", "warning", any_release=True)
def pinned_gid(subject: Subject) -> Iterator[Issue]:
    """NCCL_IB_GID_INDEX on several machines: NCCL 2.21 and later find it for each device, and it changes."""
    if subject.profile.nodes > 1 and "NCCL_IB_GID_INDEX" in subject.profile.env:
        message = "pins an index that differs on each device and changes while a machine runs; an empty text means 0"
        yield Issue(path=("env", "NCCL_IB_GID_INDEX"), message=message, fix="remove it: NCCL finds it")


@rule("GS229", "error")
def external_data_parallelism(subject: Subject) -> Iterator[Issue]:
    """External data parallelism for a dense target, from 0.21 on (ParallelConfig in vllm/config/parallel.py)."""
    given = subject.command.argument("--data-parallel-rank") or subject.command.argument("--data-parallel-external-lb")
    if given and not given.negated and subject.resolved.mixture is False and subject.runs(_DENSE_WITHOUT_EXTERNAL_DP):
        message = f"vLLM {subject.vllm} refuses {given.flag} for a model without experts"
        yield Issue(path=given.path, message=message, fix="start independent servers behind a router")


@rule("GS317", "error")
def fp8_cache_on_several_machines(subject: Subject) -> Iterator[Issue]:
    """An FP8 KV cache on several machines in 0.19: seen to stop there, and served by others since 0.26."""
    given, dtype = subject.command.argument("--kv-cache-dtype"), subject.command.value("--kv-cache-dtype") or "auto"
    if subject.resolved.target:
        quantization = subject.resolved.target.quantization
    else:
        quantization = None
    if dtype == "auto" and quantization:
        used = (quantization.kv_cache or "").lower()
    else:
        used = dtype
    if subject.profile.nodes == 1 or not used.startswith("fp8") or not subject.runs(_FP8_CACHE_FAILS):
        return
    path = set_at(given, ("serve", "kv_cache_dtype"))
    message = "on two machines vLLM 0.19.1 was seen to stop: KV cache specs for the same layer are different"
    yield Issue(path=path, message=message, fix="use a later release, or set serve.kv_cache_dtype: bfloat16")
