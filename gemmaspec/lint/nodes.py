"""GS2xx and GS3xx: one server on several machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Subject

_FP8_CACHE_FAILS: Final = "<0.20"
"""Releases in which FP8 KV caches were seen to fail on two machines: "KV cache specs for the same layer are different
across workers" (the recipe for two DGX Sparks of vLLM's own collection, 0.19.1). Later ones were not tried by anybody
whose report is known here."""

_DENSE_WITHOUT_EXTERNAL_DP: Final = ">=0.21"
"""Releases that refuse external data parallelism for a model without experts (ParallelConfig in
vllm/config/parallel.py, from 0.21.0): "Non-MoE models do not support external data parallel mode"."""


@rule("GS226", "error")
def pipeline_with_shared_layers(subject: Subject) -> Iterator[Issue]:
    """A Gemma 4 draft model whose layers share KV caches, and a target in pipeline stages."""
    stages, draft = subject.number("--pipeline-parallel-size") or 1, subject.draft
    if stages < 2 or subject.method != "draft_model":
        return
    if draft and all(layer.shares_with is None for layer in draft.text.layers):
        return
    given = subject.argument("--pipeline-parallel-size")
    message = (
        f"is {stages}, and the draft's layers are cut by the target's stages: a layer of an E2B or E4B then shares the "
        "KV cache of one that is not there, and the server does not start"
    )
    yield Issue(
        path=given.path if given else ("serve",), message=message, fix="use tensor_parallel_size, or remove the draft"
    )


@rule("GS227", "error", any_release=True)
def api_servers_of_a_headless_rank(subject: Subject) -> Iterator[Issue]:
    """`--headless` has no API server (run_headless in vllm/entrypoints/cli/serve.py, every release)."""
    headless, count = subject.argument("--headless"), subject.argument("--api-server-count")
    if headless and count and not headless.negated and (subject.number("--api-server-count") or 0) > 0:
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
    given = subject.argument("--data-parallel-rank") or subject.argument("--data-parallel-external-lb")
    if given and not given.negated and subject.has_experts is False and subject.runs(_DENSE_WITHOUT_EXTERNAL_DP):
        message = f"vLLM {subject.vllm} refuses {given.flag} for a model without experts"
        yield Issue(path=given.path, message=message, fix="start independent servers behind a router")


@rule("GS317", "warning")
def fp8_cache_on_several_machines(subject: Subject) -> Iterator[Issue]:
    """An FP8 KV cache on several machines: 0.19 fails, and later releases are unproven."""
    given, dtype = subject.argument("--kv-cache-dtype"), subject.value("--kv-cache-dtype") or "auto"
    quantization = subject.target.quantization if subject.target else None
    used = (quantization.kv_cache or "").lower() if dtype == "auto" and quantization else dtype
    if subject.profile.nodes == 1 or not used.startswith("fp8"):
        return
    path = given.path if given else ("serve", "kv_cache_dtype")
    fix = "set serve.kv_cache_dtype: bfloat16, which needs twice the memory"
    if subject.runs(_FP8_CACHE_FAILS):
        message = "on two machines vLLM 0.19.1 was seen to stop: KV cache specs for the same layer are different"
        yield Issue(path=path, message=message, fix=fix, severity="error")
    else:
        message = f"on several machines vLLM 0.19.1 was seen to stop with an FP8 KV cache; {subject.vllm} is unproven"
        yield Issue(path=path, message=message, fix=f"{fix}, or try it")


RULES: Final = (
    pipeline_with_shared_layers,
    api_servers_of_a_headless_rank,
    pinned_gid,
    external_data_parallelism,
    fp8_cache_on_several_machines,
)
