"""GS2xx and GS3xx: batches, GPUs, heads and windows whose sizes do not match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule, set_at
from gemmaspec.core.finding import Severity
from gemmaspec.core.resolved.answer import known

_HEADS: Final = frozenset({"mtp", "eagle", "eagle3", "dflash", "dspark"})
_PLAIN_STOPS: Final = {
    "mtp": "vLLM stops with NotImplementedError: Unsupported speculative method: 'mtp'",
    "dspark": "vLLM takes it for a head of DeepSeek V4, and stops while it builds that",
}
"""How a start with a plain model ends; the others stop in EAGLEConfig, which wants a vocab_size. dspark: the branch for
other architectures in SpeculativeConfig.__post_init__, from 0.26.0."""


@rule("GS202", "error")
def head_wanted(subject: Subject) -> Iterator[Issue]:
    """A complete model with a method that needs a head."""
    method, name = subject.resolved.asked_method, subject.name("draft")
    if method not in _HEADS or not name or subject.draft_is_head is not False:
        return
    message = f"{name} is a complete model, but {method} needs a head"
    message += f": {_PLAIN_STOPS.get(method, 'vLLM stops while it reads the configuration of the draft')}"
    fix = "set method: draft_model, or use a head"
    yield Issue(
        path=("speculative", "method"), message=message, fix=fix, severity=None if subject.resolved.draft else "warning"
    )


@rule("GS219", "error")
def experts_of_a_dense_model(subject: Subject) -> Iterator[Issue]:
    """Expert parallelism and more without experts (ModelConfig._verify_with_expert_parallelism, every release)."""
    alone = (subject.command.number("--data-parallel-size") or 1) == 1 and not subject.command.given(
        "--data-parallel-rank"
    )
    if alone and subject.profile.env.get("VLLM_DP_SIZE", "1") not in ("0", "1") and subject.resolved.mixture is False:
        message = "Offline data parallel mode is not supported/useful for dense models, and vLLM stops"
        severity: Severity | None = None if subject.resolved.target else "warning"
        yield Issue(path=("env", "VLLM_DP_SIZE"), message=message, fix="remove it", severity=severity)
    yield from _for_experts(
        subject, "--enable-expert-parallel", "Number of experts in the model must be greater than 0"
    )
    if subject.runs(">=0.31"):
        yield from _for_experts(
            subject, "--enable-return-routed-experts", "AuxOutput Connector only supports MoE models"
        )


def _for_experts(subject: Subject, flag: str, words: str) -> Iterator[Issue]:
    given = subject.command.argument(flag)
    if not given or given.negated or subject.resolved.mixture is not False:
        return
    message = f"the target has no experts: {words}"
    severity: Severity | None = None if subject.resolved.target else "warning"
    yield Issue(path=given.path, message=message, fix="remove it", severity=severity)


@rule("GS225", "error", any_release=True)
def too_few_gpus(subject: Subject) -> Iterator[Issue]:
    """More GPUs than the machine has (ParallelConfig in vllm/config/parallel.py, every release)."""
    each, nodes = subject.machine.most_gpus, subject.resolved.nodes
    given = subject.command.argument("--tensor-parallel-size") or subject.command.argument("--pipeline-parallel-size")
    tensor = subject.command.number("--tensor-parallel-size") or 1
    context = subject.command.argument("--prefill-context-parallel-size")
    given = given or context
    stages = subject.command.number("--pipeline-parallel-size") or 1
    wanted = tensor * stages * (subject.command.number("--prefill-context-parallel-size") or 1)
    if nodes > 1 and wanted % nodes:
        several = subject.command.argument("--nnodes")
        if several:
            path = several.path
        else:
            path = ("serve", "extra_args")
        message = f"{nodes} machines do not divide {wanted} GPUs evenly, which vLLM rejects"
        yield Issue(path=path, message=message, fix="make tensor times pipeline parallel size a multiple of --nnodes")
    if (
        not given
        or each is None
        or subject.command.value("--distributed-executor-backend") in ("ray", "external_launcher")
    ):
        return
    if wanted > each * nodes:
        has = f"{each} GPU{'s' if each > 1 else ''}"
        message = (
            f"needs {wanted} GPUs, and a {subject.machine.name} has {has}: World size ({wanted}) is larger than the "
            f"number of available GPUs ({each}) in this node"
            if nodes == 1
            else f"needs {wanted} GPUs, and {nodes} machines of kind {subject.machine.name} have {each * nodes}"
        )
        fix = f"use a smaller value, or nodes: {-(-wanted // each)} for as many machines"
        yield Issue(path=given.path, message=message, fix=fix)


@rule("GS309", "error")
def batch_below_sequences(subject: Subject) -> Iterator[Issue]:
    """Fewer tokens in a batch than requests (SchedulerConfig.verify_max_model_len, every release)."""
    sequences, batch = subject.command.number("--max-num-seqs"), known(subject.resolved.batch)
    if sequences is None or batch is None or batch >= sequences:
        return
    given = subject.command.argument("--max-num-batched-tokens") or subject.command.argument("--max-num-seqs")
    message = f"max_num_batched_tokens ({batch}) must be greater than or equal to max_num_seqs ({sequences})"
    path = set_at(given, ("serve",))
    yield Issue(
        path=path, message=message, fix=f"set max_num_batched_tokens: {sequences} or more, or use fewer sequences"
    )


@rule("GS309", "error")
def batch_below_drafts(subject: Subject) -> Iterator[Issue]:
    """A batch has room for what every request drafts: with LoRA (EngineArgs), and up to 0.27 with its own slots."""
    sequences, batch = known(subject.resolved.sequences), known(subject.resolved.batch)
    spec = subject.profile.speculative
    if not spec or sequences is None or batch is None:
        return
    lora, wanted = subject.command.argument("--enable-lora"), sequences * (subject.resolved.tokens + 1)
    if lora and not lora.negated and wanted > batch:
        message = f"with LoRA {sequences} requests of k+1 tokens need a batch of {wanted:,}, and it is {batch:,}"
        yield Issue(path=lora.path, message=message, fix=f"set serve.max_num_batched_tokens: {wanted}, or max_num_seqs")
    if not subject.runs("<0.28"):
        return
    parallel = subject.resolved.method in ("dflash", "dspark") or bool(spec.parallel_drafting)
    slots = (subject.resolved.tokens - 1 if parallel else 0) + (subject.resolved.method == "draft_model")
    if batch > slots * sequences:
        return
    message = f"a batch of {batch} tokens has no room for the drafts of {sequences} requests, {slots} slots each"
    given = subject.command.argument("--max-num-seqs") or subject.command.argument("--max-num-batched-tokens")
    path = set_at(given, ("speculative", "num_speculative_tokens"))
    fix = f"write serve.max_num_batched_tokens: {slots * sequences + 2048}, or fewer serve.max_num_seqs"
    message += f": max_num_scheduled_tokens is set to {batch - slots * sequences}"
    yield Issue(path=path, message=message, fix=fix)


@rule("GS309", "error")
def batch_below_context(subject: Subject) -> Iterator[Issue]:
    """Without chunked prefill, a batch must hold the longest prompt (SchedulerConfig.verify_max_model_len)."""
    given = subject.command.argument("--max-num-batched-tokens")
    batch = subject.command.number("--max-num-batched-tokens")
    length = known(subject.resolved.length)
    if (
        not given
        or batch is None
        or length is None
        or subject.command.switched("--enable-chunked-prefill") is not False
    ):
        return
    if batch < length:
        message = f"is {batch}, but without chunked prefill a batch must hold max_model_len, {length}"
        fix = f"use {length} or more, or leave enable_chunked_prefill out"
        yield Issue(path=given.path, message=message, fix=fix)


@rule("GS216", "error")
def no_window(subject: Subject) -> Iterator[Issue]:
    """Without sliding windows, the maximum context is one window (ModelConfig.get_and_verify_max_len)."""
    given, windows = subject.command.argument("--disable-sliding-window"), subject.windows("target")
    length = known(subject.resolved.length)
    if not given or given.negated or not windows or subject.profile.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        return
    window = min(windows)
    if subject.command.argument("--max-model-len") and length and length > window:
        message = f"max_model_len is {length}, but without the sliding window vLLM uses {window} as the maximum context"
        yield Issue(path=given.path, message=message, fix=f"remove it, or set serve.max_model_len: {window}")


@rule("GS307", "error")
def dflash_attention(subject: Subject) -> Iterator[Issue]:
    """DFlash needs non-causal attention, which Triton's kernels have from 0.24 on (supports_non_causal)."""
    spec = subject.profile.speculative
    if spec:
        backend = (spec.attention_backend or "").upper()
    else:
        backend = ""
    if subject.resolved.method == "dflash" and backend == "TRITON_ATTN" and subject.runs("<0.24"):
        message = f"TRITON_ATTN of vLLM {subject.vllm} has no kernels for non-causal attention, which dflash needs"
        path = ("speculative", "attention_backend")
        yield Issue(path=path, message=message, fix="set FLASH_ATTN, or use vLLM 0.24 or later")
