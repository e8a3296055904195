"""GS2xx and GS3xx: batches, GPUs and heads that do not match, and flags that require others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.kv_cache import attention_backend
from gemmaspec.check.lint.names import one_of
from gemmaspec.check.lint.patching import taken
from gemmaspec.check.lint.rule import Issue, Path, Subject, rule
from gemmaspec.check.lint.values import CONDITIONS, configured
from gemmaspec.core.finding import Severity
from gemmaspec.core.profile.command import LEVEL
from gemmaspec.core.profile.graphs import capture_sizes
from gemmaspec.core.releases.facts import spans
from gemmaspec.core.resolved.answer import known

_EXECUTORS: Final = ("mp", "ray", "uni", "external_launcher")
_QUANTIZATION: Final = ("linear", "moe", "ignore", "targets")
"""Keys of QuantizationConfigArgs (vllm/config/quantization.py, from 0.22.1)."""
_SHARED: Final = "--mm-shm-cache-max-object-size-mb"
_HEADS: Final = frozenset({"mtp", "eagle", "eagle3", "dflash", "dspark"})
_PLAIN_STOPS: Final = {
    "mtp": "vLLM stops with NotImplementedError: Unsupported speculative method: 'mtp'",
    "dspark": "vLLM takes it for a head of DeepSeek V4, and stops while it builds that",
}
"""How a start with a plain model ends; the others stop in EAGLEConfig, which wants a vocab_size. dspark: the branch for
other architectures in SpeculativeConfig.__post_init__, from 0.26.0."""
_SPLIT: Final = "triton-verify-split-kv"
"""The patch that splits the cache for verification too."""
_SHORT: Final = 4096
"""Tokens of context up to which a draft is not slowed down much by Triton's attention."""
_LOG_LEVELS: Final = frozenset({"CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "NOTSET"})


@rule("GS112", "error", any_release=True)
def partner(subject: Subject) -> Iterator[Issue]:
    """A flag that vLLM accepts only with another one."""
    for flag, (wanted, fix) in CONDITIONS["partners"].items():
        given = subject.command.argument(flag)
        if given and not given.negated and not subject.command.switched(wanted):
            message = f"{flag} requires {wanted}, and vLLM stops without it"
            if subject.is_other_family:
                added = fix.replace("gemma4", "the model's own parser")
            else:
                added = fix
            yield Issue(path=given.path, message=message, fix=f"add {added}, or remove it")
    for flag, (wanted, value) in CONDITIONS["values"].items():
        given = subject.command.argument(flag)
        if given and not given.negated and subject.command.value(wanted) != value:
            message = f"{flag} requires {wanted}={value}, and vLLM stops without it"
            yield Issue(path=given.path, message=message, fix=f"add {wanted}={value}, or remove it")
    for flag, message, fix in (*_backends(subject), *_conditions(subject)):
        given = subject.command.argument(flag)
        if given and not given.negated:
            yield Issue(path=given.path, message=message, fix=fix)


_MICRO_BATCHES: Final = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")


def _conditions(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield each flag whose condition is not met, with the message and the fix."""
    command = subject.command
    if not subject.resolved.asked_method:
        message = "it counts draft tokens, and vLLM stops without a draft"
        yield "--per-request-spec-decode-metrics", message, "remove it, or add speculative"
    fault_tolerance = "--enable-fault-tolerance"  # EngineArgs.create_engine_config, 0.27.0 and later
    if not command.switched("--data-parallel-external-lb") and not command.argument("--data-parallel-rank"):
        message = f"{fault_tolerance} requires --data-parallel-external-lb, and vLLM stops without it"
        yield fault_tolerance, message, "remove it"
    several = command.number("--data-parallel-size") or 1
    context, tensor = "--decode-context-parallel-size", command.number("--tensor-parallel-size") or 1
    if tensor % (command.number(context) or 1):
        message = f"tp_size={tensor} must be divisible by dcp_size={command.number(context)}."
        yield context, message, "use a divisor of serve.tensor_parallel_size, or remove it"
    if (command.number("--data-parallel-size-local") or 0) > several:
        message = f"data_parallel_size_local must be <= data_parallel_size ({several})"
        yield "--data-parallel-size-local", message, "remove it"
    yield from _transfer(subject)
    if subject.runs("<0.27"):  # EngineArgs._check_feature_supported
        for flag in ("--max-num-partial-prefills", "--max-long-partial-prefills"):
            if command.number(flag) not in (None, 1):
                yield flag, "Concurrent Partial Prefill is not supported, and vLLM stops", "remove it"
        if (command.number("--renderer-num-workers") or 1) > 1 and command.value("--mm-processor-cache-gb") != "0":
            message = "--renderer-num-workers > 1 does not work with the multimodal processor cache, and vLLM stops"
            yield "--renderer-num-workers", message, "remove it, or add --mm-processor-cache-gb=0"
    if several < 2:  # ServeSubcommand.cmd, 0.26.0 and later
        flag = "--data-parallel-multi-port-external-lb"
        yield flag, f"{flag} requires --data-parallel-size > 1, and vLLM stops without it", "remove it"
    if not command.argument("--data-parallel-size-local"):
        words = "`--data-parallel-hybrid-lb` requires `--data-parallel-size-local`"
        yield "--data-parallel-hybrid-lb", words, "remove it"
    if subject.profile.nodes == 1 and not command.given("--data-parallel-rank", "--node-rank"):  # EngineArgs
        message = "it requires a data-parallel rank, and vLLM stops without it"
        yield "--data-parallel-external-lb", message, "add --data-parallel-rank, or remove it"
    if command.value("--mm-processor-cache-type") != "shm" and command.number(_SHARED) not in (None, 128):
        message = "'mm_shm_cache_max_object_size_mb' should only be set when 'mm_processor_cache_type' is 'shm'"
        yield _SHARED, message, "add --mm-processor-cache-type=shm, or remove it"
    if subject.resolved.method == "dspark":  # VllmConfig, every release that has both
        yield "--enable-dbo", "two micro-batches do not work with dspark, and vLLM stops", "remove it"
    if subject.runs(">=0.31"):  # VllmConfig: from then on, a connector hands out the routed experts
        experts = "--enable-return-routed-experts"
        if subject.resolved.runner == "v1":
            message = f"{experts} requires model runner v2, and vLLM {subject.vllm} uses v1 here"
            yield experts, message, "remove it"
        elif command.switched("--enable-prefix-caching") is False:
            message = f"{experts} requires prefix caching, and vLLM stops without it"
            yield experts, message, "remove it, or set serve.enable_prefix_caching: true"


def _backends(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield, as `_conditions`, what wants another backend (VllmConfig, every release; EngineArgs, from 0.30.0)."""
    if subject.command.value("--all2all-backend") not in _MICRO_BATCHES:
        message = f"two micro-batches require --all2all-backend={', '.join(_MICRO_BATCHES)}, and vLLM stops"
        if subject.machine.gpus:  # CpuPlatform.check_and_update_config turns it off
            yield "--enable-dbo", message, "remove it"
        if (subject.command.number("--ubatch-size") or 0) > 1:
            yield "--ubatch-size", message, "remove it"
    if subject.command.value("--kda-prefill-backend") == "fused":
        yield "--kda-prefill-backend", "fused is for ROCm alone, and vLLM stops", "remove it"


def _transfer(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield, as `_conditions`, a connector that this vLLM has not, or one without a role (KV and ECTransferConfig)."""
    for kind, connectors in (
        ("kv", subject.resolved.facts.kv_connectors),
        ("ec", subject.resolved.facts.ec_connectors),
    ):
        flag, called = f"--{kind}-transfer-config", f"{kind.upper()} connector"
        asked, _ = configured(subject, flag)
        name, role = asked.get(f"{kind}_connector"), asked.get(f"{kind}_role")
        roles = [f"{kind}_{end}" for end in ("both", "producer", "consumer")]
        if name is None:
            message = f"Connector name is not set in {kind.upper()}TransferConfig, and vLLM stops without it"
            yield flag, message, f"add the key {kind}_connector"
        elif str(name) not in connectors and not asked.get(f"{kind}_connector_module_path"):
            message = f"vLLM {subject.vllm} has no {called} {name!r}; available {spans(called, str(name))}"
            yield flag, message, one_of(str(name), connectors)
        elif role not in roles:
            yield flag, f"{kind}_role is {role!r}, and vLLM stops", f"set {kind}_role: {', '.join(roles)}"


@rule("GS102", "error", any_release=True)
def small_values(subject: Subject) -> Iterator[Issue]:
    """A value that the engine's configuration rejects."""
    most, kept = subject.command.argument("--max-loras"), subject.command.argument("--max-cpu-loras")
    loras, cpu = subject.command.number("--max-loras") or 1, subject.command.number("--max-cpu-loras")
    if kept and cpu is not None and cpu < loras and subject.command.switched("--enable-lora"):
        message = f"max_cpu_loras is {cpu}, and max_loras {loras}"
        yield Issue(path=(most or kept).path, message=message, fix=f"set --max-cpu-loras={loras} or more")
    level = subject.profile.env.get("VLLM_LOGGING_LEVEL")
    if level is not None and level.upper() not in _LOG_LEVELS:
        path: Path = ("env", "VLLM_LOGGING_LEVEL")
        yield Issue(path=path, message=f"Python's logging has no level {level!r}", fix="use INFO, DEBUG or WARNING")
    backend = subject.command.argument("--data-parallel-backend")
    if backend and backend.value not in ("mp", "ray"):
        fix = "use mp or ray"
        yield Issue(path=backend.path, message=f"vLLM has no data parallel backend {backend.value!r}", fix=fix)
    executor = subject.command.argument("--distributed-executor-backend")
    if executor and executor.value and "." not in executor.value and executor.value not in (*_EXECUTORS, "None"):
        message = f"vLLM has no executor {executor.value!r}, nor is it the path of a class"
        yield Issue(path=executor.path, message=message, fix=f"use {', '.join(_EXECUTORS)}, or remove it")
    asked, path = configured(subject, "--quantization-config")
    if strange := [key for key in asked if key not in _QUANTIZATION]:
        message = f"--quantization-config has no key {strange[0]}, and vLLM stops"
        yield Issue(path=path, message=message, fix=f"its keys are {', '.join(_QUANTIZATION)}")
    sizes, path = capture_sizes(subject.command)
    if (
        sizes is not None
        and not any(sizes)
        and subject.machine.gpus
        and not subject.command.switched("--enforce-eager")
    ):
        message = "CUDA graphs need at least one size to capture, and vLLM stops"
        yield Issue(path=path, message=message, fix="remove it, or set serve.enforce_eager: true to have no graphs")
    for argument in subject.command.arguments:
        if argument.flag == LEVEL and argument.value and argument.value not in ("0", "1", "2", "3"):
            yield Issue(path=argument.path, message="vLLM's optimization levels are 0 to 3", fix="use -O2 or less")


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
    each, nodes = subject.machine.most_gpus, max(subject.profile.nodes, subject.command.number("--nnodes") or 1)
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
    path = given.path if given else ("serve",)
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
    if given:
        path = given.path
    else:
        path = ("speculative", "num_speculative_tokens")
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


@rule("GS506", "note", of_gemma=True)
def long_prompts(subject: Subject) -> Iterator[Issue]:
    """Drafts at long prompts under Triton up to 0.32: verifying reads the cache without splitting it (#48076)."""
    room = subject.command.number("--max-model-len") or 0
    if not subject.resolved.method or room <= _SHORT or subject.runs(">=0.33"):
        return
    if attention_backend(subject, "target") != "TRITON_ATTN" or _SPLIT in taken(subject):
        return
    unsplit = f"Triton's attention of vLLM {subject.vllm} reads a request's cache in one piece when it verifies drafts"
    message = f"{unsplit}: {_unsplit_costs(subject.machine.compute_capability)}"
    if _SPLIT in subject.patches and subject.runs(">=0.26"):
        ours = f"list {_SPLIT} under patches.speed, "
    else:
        ours = ""
    fix = f"{ours}use vLLM 0.33 or later for long prompts, or measure yours (gemmaspec bench --context)"
    yield Issue(path=("speculative", "method"), message=message, fix=fix)


def _unsplit_costs(capability: str | None) -> str:
    """Return what that costs on a GPU, as far as it is known: measured on Hopper, computed for a Spark."""
    if capability == "12.1":
        return (
            "computed for a 31B with an FP8 cache and 7 drafted tokens, one request, a draft still pays on a DGX Spark "
            "where a step yields more than 1.7 tokens after 32,768 of prompt, and 2.6 tokens after 131,072"
        )
    if (capability or "9.0").startswith("9."):
        return (
            "with prompts of 8,192 tokens a 31B under TRITON_ATTN was no faster with its assistant than without, on an "
            "H200"
        )
    return "how much of what a draft gains is lost with long prompts on this GPU, nobody has measured"


@rule("GS605", "warning")
def streamed_tool_calls(subject: Subject) -> Iterator[Issue]:
    """Up to 0.23, the Gemma 4 tool parser loses arguments if several tokens arrive at once (#41967, #42875)."""
    given = subject.command.argument("--tool-call-parser")
    if given and given.value == "gemma4" and subject.resolved.method and subject.runs("<0.24"):
        message = (
            f"the parser of vLLM {subject.vllm} loses arguments of streamed tool calls if several tokens arrive at once"
        )
        yield Issue(path=given.path, message=message, fix="use vLLM 0.24 or later, or do not stream answers with tools")
