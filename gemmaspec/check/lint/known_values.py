"""GS1xx: values and keys that this vLLM knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.check.lint.values import configured
from gemmaspec.core.finding import Severity
from gemmaspec.core.releases.facts import spans

_UNSET: Final = ("", "None")
"""Words that vLLM's parser reads as nothing (optional_type in vllm/engine/arg_utils.py)."""


@rule("GS102", "error")
def flag_value(subject: Subject) -> Iterator[Issue]:
    """A value that is not among a flag's choices."""
    for given in subject.command.arguments:
        known = subject.resolved.facts.flags.get(given.flag)
        if known and known.choices and given.value is not None and not known.takes(given.value):
            message = f"vLLM {subject.vllm} does not take {given.value!r} for {given.flag}"
            yield Issue(path=given.path, message=message, fix=one_of(given.value, known.choices))


@rule("GS101", "error")
def speculative_key(subject: Subject) -> Iterator[Issue]:
    """A key that this vLLM's SpeculativeConfig does not have."""
    for key in _speculative(subject):
        if key not in subject.resolved.facts.speculative_keys:
            message = f"vLLM {subject.vllm} has no speculative key {key}; available {spans('speculative key', key)}"
            yield Issue(path=("speculative", key), message=message, fix="remove it, or use a vLLM release that has it")


@rule("GS102", "error")
def speculative_value(subject: Subject) -> Iterator[Issue]:
    """A value that a speculative key does not allow."""
    for key, value in _speculative(subject).items():
        if key == "method":
            continue  # GS203 says what drafts for Gemma 4
        known = subject.resolved.facts.speculative_values.get(key)
        if known and isinstance(value, str) and value not in known:
            message = f"vLLM {subject.vllm} does not take {value!r} for {key}"
            yield Issue(path=("speculative", key), message=message, fix=one_of(value, known))


@rule("GS102", "error")
def variable_value(subject: Subject) -> Iterator[Issue]:
    """A value of a variable that vLLM rejects (env_with_choices in vllm/envs.py)."""
    for name, value in subject.profile.env.items():
        known = subject.resolved.facts.environment_values.get(name)
        if known and name.startswith(("VLLM_", "CMAKE_")) and value.lower() not in {form.lower() for form in known}:
            message = f"vLLM {subject.vllm} does not take {value!r} for {name}"
            yield Issue(path=("env", name), message=message, fix=one_of(value, known))


@rule("GS102", "error")
def parser(subject: Subject) -> Iterator[Issue]:
    """A parser that is not registered in this vLLM."""
    reasoning, plugin_ = subject.resolved.facts.reasoning_parsers, "--reasoning-parser-plugin"
    for flag_, plugin, known in (
        ("--reasoning-parser", plugin_, reasoning),
        ("--tool-call-parser", "--tool-parser-plugin", subject.resolved.facts.tool_call_parsers),
    ):
        given = subject.command.argument(flag_)
        if given and given.value and given.value not in known and not subject.command.argument(plugin):
            message = f"vLLM {subject.vllm} has no parser {given.value!r} for {flag_}"
            used = flag_ != "--tool-call-parser" or subject.profile.chat.tool_call_parser
            needed = used or subject.command.switched("--enable-auto-tool-choice")
            severity: Severity | None = None if needed else "warning"
            yield Issue(path=given.path, message=message, fix=one_of(given.value, known), severity=severity)
    if not subject.command.argument(plugin_):
        yield from _configured_parser(subject)


def _configured_parser(subject: Subject) -> Iterator[Issue]:
    """Yield a parser of --reasoning-config that is not registered; up to 0.27 it is looked up without a name too."""
    asked, path = configured(subject, "--reasoning-config")
    name, early = asked.get("reasoning_parser", ""), subject.runs("<0.28")
    if not path or not isinstance(name, str) or subject.command.value("--reasoning-parser"):
        return  # the flag takes the key's place (_set_default_reasoning_config_args, from 0.20.0)
    if early:
        spared = asked.get("reasoning_start_str") and asked.get("reasoning_end_str")
    else:
        spared = not name
    if not spared and name not in subject.resolved.facts.reasoning_parsers - {"none"}:
        message = f"vLLM {subject.vllm} has no parser {name!r} for reasoning_parser in --reasoning-config"
        yield Issue(path=path, message=message, fix=one_of(name, subject.resolved.facts.reasoning_parsers))


@rule("GS102", "error")
def attention_backend(subject: Subject) -> Iterator[Issue]:
    """An attention backend that is not in vLLM's registry."""
    for path, name in _attention_backends(subject):
        if name.upper() not in subject.resolved.facts.attention_backends and name.lower() != "auto":
            message = f"vLLM {subject.vllm} has no attention backend {name!r}"
            yield Issue(path=path, message=message, fix=one_of(name.upper(), subject.resolved.facts.attention_backends))


@rule("GS102", "error")
def cache_dtype(subject: Subject) -> Iterator[Issue]:
    """A KV cache format that vLLM does not know, although its parser accepts any text."""
    known = subject.resolved.facts.kv_cache_dtypes
    for path, dtype in _cache_dtypes(subject):
        if known and dtype not in known:
            message = f"vLLM {subject.vllm} does not know the KV cache format {dtype!r}"
            yield Issue(path=path, message=message, fix=one_of(dtype, known))


def _speculative(subject: Subject) -> dict[str, object]:
    spec = subject.profile.speculative
    if spec:
        return spec.model_dump(exclude_none=True, exclude={"k_by_requests"})
    return {}


def _attention_backends(subject: Subject) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for flag_ in ("--attention-backend", "--mm-encoder-attn-backend"):
        given = subject.command.argument(flag_)
        if given and given.value not in (None, *_UNSET):
            yield given.path, given.value or ""
    spec = subject.profile.speculative
    if spec and spec.attention_backend:
        yield ("speculative", "attention_backend"), spec.attention_backend


def _cache_dtypes(subject: Subject) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Return the formats that the parser does not check."""
    given = subject.command.argument("--kv-cache-dtype")
    if given and given.value and not subject.resolved.facts.flags[given.flag].choices:
        yield given.path, given.value
    spec = subject.profile.speculative
    if spec and spec.kv_cache_dtype and "kv_cache_dtype" not in subject.resolved.facts.speculative_values:
        yield ("speculative", "kv_cache_dtype"), spec.kv_cache_dtype


def one_of(value: str, known: Iterable[str]) -> str:
    """Return the fix for a value that is not among the known ones."""
    names = sorted(known)
    if value.lower() in names:
        return f"write {value.lower()}"
    if value.lower().startswith(("nvfp4", "w4a4")) and "modelopt" in names:
        return "use modelopt, or compressed-tensors, whichever wrote the checkpoint (config.json says it)"
    near = difflib.get_close_matches(value, names, n=3, cutoff=0.5)
    return (
        f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(names[:12])}{' …' * (len(names) > 12)}"
    )
