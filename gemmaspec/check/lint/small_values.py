"""GS102: values that a flag does not take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Path, Subject, rule
from gemmaspec.check.lint.values import configured
from gemmaspec.core.profile.command import LEVEL
from gemmaspec.core.profile.graphs import capture_sizes

_EXECUTORS: Final = ("mp", "ray", "uni", "external_launcher")

_QUANTIZATION: Final = ("linear", "moe", "ignore", "targets")
"""Keys of QuantizationConfigArgs (vllm/config/quantization.py, from 0.22.1)."""


_LOG_LEVELS: Final = frozenset({"CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "NOTSET"})


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
