"""Which model runner a vLLM release chooses, as far as that can be read from its code.

VllmConfig.use_v2_model_runner in vllm/config/vllm.py: VLLM_USE_V2_MODEL_RUNNER when it is set; else v2, if
_is_default_v2_model_runner_model (up to 0.28) says so and _get_v2_model_runner_unsupported_features names nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

from extraction.sources import Sources, constant, method_of

CONFIG: Final = "vllm/config/vllm.py"


@dataclass(frozen=True, kw_only=True)
class RunnerChoice:
    """What makes vLLM fall back from model runner v2 to v1."""

    chooses: bool
    """Whether vLLM chooses by itself; otherwise v1 runs unless VLLM_USE_V2_MODEL_RUNNER is set."""
    default: str = ""
    """Which models it is chosen for: the last condition of _is_default_v2_model_runner_model; empty for all."""
    unsupported: frozenset[str] = frozenset()
    """What v2 does not support, in vLLM's own words, one for each `unsupported.append`."""
    methods_refused: frozenset[str] = frozenset()
    """Speculative methods that vLLM lists as unsupported."""
    methods_supported: frozenset[str] | None = None
    """The methods that v2 supports, if vLLM lists those instead; all others are unsupported."""


def runner_of(sources: Sources) -> RunnerChoice:
    """Return the rules in VllmConfig. Raise Unexpected if the class is missing."""
    _, config = sources.class_of(CONFIG, "VllmConfig")
    features = method_of(config, "_get_v2_model_runner_unsupported_features")
    if features is None:
        return RunnerChoice(chooses=False)
    refused: set[str] = set()
    supported: frozenset[str] | None = None
    for node in ast.walk(features):
        if not isinstance(node, ast.If) or not _names_method(node):
            continue
        comparison = node.test
        assert isinstance(comparison, ast.Compare)
        values = _texts(comparison.comparators[0])
        if isinstance(comparison.ops[0], ast.NotIn):
            supported = values
        else:
            refused |= values
    return RunnerChoice(
        chooses=True,
        default=_last_return(method_of(config, "_is_default_v2_model_runner_model")),
        unsupported=_words(features),
        methods_refused=frozenset(refused),
        methods_supported=supported,
    )


def _last_return(function: ast.FunctionDef | None) -> str:
    match function:
        case ast.FunctionDef(body=[*_, ast.Return(value=ast.expr() as value)]):
            return ast.unparse(value)
    return ""


def _names_method(node: ast.If) -> bool:
    """Return whether the condition is only `speculative_config.method in (…)`, or `not in`."""
    match node.test:
        case ast.Compare(left=ast.Attribute(attr="method"), ops=[ast.In() | ast.NotIn()]):
            return True
    return False


def _texts(node: ast.expr) -> frozenset[str]:
    return frozenset(text for one in ast.walk(node) if isinstance(one, ast.Constant) and (text := constant(one)))


def _words(features: ast.FunctionDef) -> frozenset[str]:
    """Return the texts that are added to the list; f-strings without their placeholders."""
    found = set()
    for call in ast.walk(features):
        match call:
            case ast.Call(func=ast.Attribute(attr="append"), args=[ast.Constant(value=str(text))]):
                found.add(text)
            case ast.Call(func=ast.Attribute(attr="append"), args=[ast.JoinedStr(values=parts)]):
                found.add("".join(constant(part) or "…" for part in parts))
    return frozenset(found)
