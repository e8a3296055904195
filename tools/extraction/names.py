"""Names that a vLLM release knows: speculative keys, environment variables, parsers, metrics, quantizations, models."""

from __future__ import annotations

import ast
import copy
import re
from typing import Final, TypeGuard

from extraction.flags import ENGINE
from extraction.hints import hints_of
from extraction.sources import Sources, Unexpected, assigned, constant

SPECULATIVE: Final = "vllm/config/speculative.py"
ENVIRONMENT: Final = "vllm/envs.py"
REASONING: Final = "vllm/reasoning/__init__.py"
TOOLS: Final = "vllm/tool_parsers/__init__.py"
QUANTIZATION: Final = "vllm/model_executor/layers/quantization/__init__.py"
CACHE: Final = "vllm/config/cache.py"
REGISTRY: Final = "vllm/model_executor/models/registry.py"
BACKENDS: Final = "vllm/v1/attention/backends/registry.py"
KV_CONNECTORS: Final = "vllm/distributed/kv_transfer/kv_connector/factory.py"
EC_CONNECTORS: Final = "vllm/distributed/ec_transfer/ec_connector/factory.py"
METRICS: Final = (
    "vllm/v1/metrics/loggers.py",
    "vllm/v1/metrics/perf.py",
    "vllm/v1/spec_decode/metrics.py",
    "vllm/parser/metrics.py",
)
"""The engine's own metrics, without those of KV connectors, reinforcement learning and speech."""

_CONVERTED: Final = {"int": "int", "float": "float", "maybe_convert_int": "int", "maybe_convert_bool": "int"}
"""Functions of vllm/envs.py that read a number, by the form that they want."""
_METRIC: Final = re.compile("vllm:[a-z0-9_]+")


def speculative_of(sources: Sources) -> dict[str, frozenset[str]]:
    """Return the keys of --speculative-config, each with its allowed values; an empty set allows any.

    SpeculativeConfig forbids every other key. Fields that the engine fills in (with SkipValidation) are not keys.
    """
    found = {}
    for key, (where, statement) in sources.fields(SPECULATIVE, "SpeculativeConfig").items():
        if "SkipValidation" in ast.unparse(statement.annotation) or key.startswith("_"):
            continue
        hints = hints_of(sources, where, statement.annotation)
        values = frozenset(value for hint in hints if hint.kind == "literal" for value in hint.values)
        found[key] = frozenset() if any(hint.kind == "str" for hint in hints) else values
    return found


def environment_of(sources: Sources) -> dict[str, frozenset[str]]:
    """Return the variables in vllm/envs.py, each with its allowed values; an empty set allows any.

    vLLM warns of other variables that begin with VLLM_, or rejects them with --fail-on-environ-validation.
    """
    table = _table(sources, ENVIRONMENT, "environment_variables")
    return {name: _env_choices(value) for name, value in table.items()}


def environment_forms_of(sources: Sources) -> dict[str, str]:
    """Return the form (values.py) of each variable whose text is converted to a number or read as JSON."""
    found = {}
    for name, value in _table(sources, ENVIRONMENT, "environment_variables").items():
        reader = sources.find(ENVIRONMENT, value.id) if isinstance(value, ast.Name) else None  # get_vllm_port
        tree = _in_place(reader[1], name) if reader else value
        forms = {_CONVERTED.get(ast.unparse(call.func), "") for call in ast.walk(tree) if _reads(call, name)}
        forms -= {""} if reader else set()  # its error names the text, too
        if len(forms) == 1 and (form := forms.pop()):
            found[name] = form
    return found


def _in_place(function: ast.AST, name: str) -> ast.AST:
    """Return a function with what it reads of the variable in place of the name that it gives it."""
    read = {
        target.id: statement.value
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign) and name in ast.unparse(statement.value)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }

    class Filled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return read.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    return Filled().visit(copy.deepcopy(function))  # type: ignore[no-any-return]


def _reads(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    """Return whether a call converts a variable's text and nothing else."""
    match node:
        case ast.Call(args=[ast.Call(func=read, args=[ast.Constant(value), *_])]):
            return value == name and ast.unparse(read) in ("os.getenv", "os.environ.get")
        case ast.Call(args=[ast.Subscript(value=table, slice=ast.Constant(value))]):
            return value == name and ast.unparse(table) == "os.environ"
    return False


def reasoning_parsers_of(sources: Sources) -> frozenset[str]:
    """Return names for --reasoning-parser, with `none` where vLLM accepts it for "no parser" (from 0.33.0 on)."""
    none = {"none"} if sources.find(ENGINE, "parse_reasoning_parser") else set()
    return frozenset(none) | frozenset(_table(sources, REASONING, "_REASONING_PARSERS_TO_REGISTER"))


def tool_call_parsers_of(sources: Sources) -> frozenset[str]:
    """Return names for --tool-call-parser."""
    return frozenset(_table(sources, TOOLS, "_TOOL_PARSERS_TO_REGISTER"))


def quantizations_of(sources: Sources) -> frozenset[str]:
    """Return names for --quantization."""
    return _literal(sources, QUANTIZATION, "QuantizationMethods")


def deprecated_quantizations_of(sources: Sources) -> frozenset[str]:
    """Return the quantizations that need --allow-deprecated-quantization."""
    found = sources.find(QUANTIZATION, "DEPRECATED_QUANTIZATION_METHODS")
    listed = assigned(found[1]) if found else None
    values = listed.elts if isinstance(listed, ast.List) else []
    return frozenset(text for value in values if (text := constant(value)))


def kv_cache_dtypes_of(sources: Sources) -> frozenset[str]:
    """Return names for --kv-cache-dtype. From 0.33.0 on a platform may add its own, and the parser accepts any."""
    return _literal(sources, CACHE, "CacheDType")


def attention_backends_of(sources: Sources) -> frozenset[str]:
    """Return names for --attention-backend."""
    _, found = sources.class_of(BACKENDS, "AttentionBackendEnum")
    targets = [statement.targets[0] for statement in found.body if isinstance(statement, ast.Assign)]
    return frozenset(target.id for target in targets if isinstance(target, ast.Name))


def connectors_of(sources: Sources, factory: str) -> frozenset[str]:
    """Return names for kv_connector or ec_connector: the first arguments of register_connector() in a factory."""
    calls = (node for node in ast.walk(sources.module(factory)) if isinstance(node, ast.Call))
    named = (node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "register_connector")
    return frozenset(name for node in named if node.args and (name := constant(node.args[0])))


def architectures_of(sources: Sources) -> frozenset[str]:
    """Return the Gemma 4 architectures that vLLM has a model for, as config.json names them."""
    keys = (key for node in ast.walk(sources.module(REGISTRY)) if isinstance(node, ast.Dict) for key in node.keys)
    return frozenset(name for key in keys if (name := constant(key)) and name.startswith("Gemma4"))


def metrics_of(sources: Sources) -> frozenset[str]:
    """Return the metrics of METRICS, as vLLM names them: the exposition adds _total to a counter."""
    trees = [tree for path in METRICS if (tree := sources.parsed(path))]
    texts = (constant(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(text for text in texts if text and _METRIC.fullmatch(text))


def _table(sources: Sources, path: str, name: str) -> dict[str, ast.expr]:
    """Return a dict that is written out at the top level of a file. Raise Unexpected if it is not."""
    found = sources.find(path, name)
    table = assigned(found[1]) if found else None
    if not isinstance(table, ast.Dict):
        raise Unexpected(f"{path}: {name} is not a table")
    return {text: value for key, value in zip(table.keys, table.values, strict=True) if (text := constant(key))}


def _literal(sources: Sources, path: str, name: str) -> frozenset[str]:
    hints = hints_of(sources, path, ast.Name(id=name))
    if [hint.kind for hint in hints] != ["literal"]:
        raise Unexpected(f"{path}: {name} is not a literal")
    return frozenset(hints[0].values)


def _env_choices(node: ast.expr) -> frozenset[str]:
    """Return the third argument of env_with_choices() if it is written out."""
    match node:
        case ast.Call(func=ast.Name(id="env_with_choices"), args=[_, _, ast.List(elts=values), *_]):
            return frozenset(text for value in values if (text := constant(value)))
    return frozenset()
