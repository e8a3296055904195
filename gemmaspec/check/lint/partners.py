"""GS112: flags that require others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.known_values import one_of
from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.check.lint.values import CONDITIONS, configured
from gemmaspec.core.releases.facts import spans

_SHARED: Final = "--mm-shm-cache-max-object-size-mb"


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
