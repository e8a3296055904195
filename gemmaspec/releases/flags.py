"""The flags of `vllm serve`, from the code that builds its argument parser.

vLLM makes most of them from the fields of its config dataclasses: `get_kwargs(ModelConfig)["dtype"]` is taken apart
by type (EngineArgs.add_cli_args and _compute_kwargs in vllm/engine/arg_utils.py, FrontendArgs.add_cli_args in the
file that vllm/entrypoints/cli/serve.py imports make_arg_parser from). A field with a bool is a flag with a --no-
form, one with a Literal and no str has choices, one that also takes str has none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemmaspec.releases.hints import Hint, hints_of
from gemmaspec.releases.sources import Sources, Unexpected, assigned, constant, method_of

SERVE: Final = "vllm/entrypoints/cli/serve.py"
ENGINE: Final = "vllm/engine/arg_utils.py"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One long option of `vllm serve`."""

    name: str
    """With the leading --."""
    choices: frozenset[str] | None = None
    """The only values; None when any text goes, as far as the parser is concerned."""
    negatable: bool = False
    """There is a --no- form of it as well, and neither takes a value."""
    bare: bool = False
    """It may stand without a value."""
    short: str | None = None
    """As -tp."""


def flags_of(sources: Sources) -> dict[str, Flag]:
    """Every long option, by name. Raises Unexpected where vLLM's code is not understood."""
    where, found = sources.find(SERVE, "make_arg_parser") or (SERVE, None)
    if not isinstance(found, ast.FunctionDef):
        raise Unexpected(f"{SERVE}: there is no make_arg_parser")
    return {
        flag.name: flag
        for flags in (
            _added(sources, where, [found]),
            _frontend(sources, where, "FrontendArgs"),
            _added(sources, ENGINE, _methods(sources, ENGINE, ("EngineArgs", "AsyncEngineArgs"))),
        )
        for flag in flags
    }


def _methods(sources: Sources, path: str, classes: Sequence[str]) -> list[ast.FunctionDef]:
    found = [method_of(sources.class_of(path, name)[1], "add_cli_args") for name in classes]
    return [method for method in found if method]


def _frontend(sources: Sources, path: str, name: str) -> Iterator[Flag]:
    """One flag a field; _customize_cli_kwargs changes types, never names."""
    for field, (where, statement) in sources.fields(path, name).items():
        yield replace(_of_hints(hints_of(sources, where, statement.annotation)), name=option(field))


def option(field: str) -> str:
    """A field's name as a long option."""
    return "--" + field.replace("_", "-")


def _added(sources: Sources, path: str, functions: Sequence[ast.FunctionDef]) -> Iterator[Flag]:
    """The flags of the add_argument calls in some functions."""
    for function in functions:
        names = _kwargs_names(function)
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                yield from _of_call(sources, path, call, names)


def _kwargs_names(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Local names and what they stand for: model_kwargs -> get_kwargs(ModelConfig)."""
    return {
        target.id: statement.value
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _of_call(sources: Sources, path: str, call: ast.Call, names: Mapping[str, ast.expr]) -> Iterator[Flag]:
    options = [constant(argument) or "" for argument in call.args]
    long = [option for option in options if option.startswith("--")]
    short = next((option for option in options if option.startswith("-") and not option.startswith("--")), None)
    if not long:
        return
    flag = Flag(name="")
    for keyword in call.keywords:
        flag = _with(sources, path, keyword, names, flag)
    for name in long:
        yield replace(flag, name=name, short=short)


def _with(sources: Sources, path: str, keyword: ast.keyword, names: Mapping[str, ast.expr], flag: Flag) -> Flag:
    """The flag as one keyword of add_argument changes it."""
    value = keyword.value
    match keyword.arg:
        case None:
            return _of_field(sources, path, value, names)
        case "action" if ast.unparse(value).endswith("BooleanOptionalAction"):
            return replace(flag, negatable=True, bare=True)
        case "action" if constant(value) in ("store_true", "store_false"):
            return replace(flag, bare=True)
        case "nargs" if constant(value) == "?":
            return replace(flag, bare=True)
        case "choices":
            return replace(flag, choices=_choices(sources, path, value))
    return flag


def _of_field(sources: Sources, path: str, node: ast.expr, names: Mapping[str, ast.expr]) -> Flag:
    """`**x_kwargs["field"]`, or a dict that starts with it."""
    match node:
        case ast.Dict(keys=[None, *_], values=[first, *_]):
            return _of_field(sources, path, first, names)
        case ast.Name(id=name) if name in names:
            return _of_field(sources, path, names[name], names)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(field))):
            fields = sources.fields(path, _config_name(inner, names))
            if field not in fields:
                raise Unexpected(f"{path}:{node.lineno}: no field {field}")
            where, statement = fields[field]
            return _of_hints(hints_of(sources, where, statement.annotation))
    raise Unexpected(f"{path}:{node.lineno}: not understood: {ast.unparse(node)[:80]}")


def _config_name(node: ast.expr, names: Mapping[str, ast.expr]) -> str:
    match node:
        case ast.Name(id=name) if name in names:
            return _config_name(names[name], names)
        case ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=name)]):
            return name
    raise Unexpected(f"line {node.lineno}: not get_kwargs(…): {ast.unparse(node)[:80]}")


def _of_hints(hints: Sequence[Hint]) -> Flag:
    """As _compute_kwargs decides by type."""
    kinds = {hint.kind for hint in hints}
    if "config" in kinds:
        return Flag(name="")
    if kinds == {"bool", "str", "None"}:
        return Flag(name="", bare=True)
    if "bool" in kinds:
        return Flag(name="", negatable=True, bare=True)
    values = frozenset(value for hint in hints if hint.kind == "literal" for value in hint.values)
    if values:
        return Flag(name="", choices=None if "str" in kinds else values)
    listed = frozenset(value for hint in hints if hint.kind == "list" for value in hint.values)
    return Flag(name="", choices=listed or None)


def _choices(sources: Sources, path: str, node: ast.expr) -> frozenset[str] | None:
    """`choices=` that is written out, or is get_args() of a literal; None when the machine decides."""
    match node:
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return frozenset(constant(value) or ast.unparse(value) for value in values)
        case ast.Call(func=ast.Name(id="get_args"), args=[inner]):
            return frozenset(value for hint in hints_of(sources, path, inner) for value in hint.values)
        case ast.Name(id=name) if found := sources.find(path, name):
            value = assigned(found[1])
            return _choices(sources, found[0], value) if value is not None else None
    return None
