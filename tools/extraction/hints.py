"""Type hints as vLLM's own argument parser interprets them: which kinds of values a field has."""

from __future__ import annotations

import ast
from typing import Final

from extraction.sources import Hint, Sources, Unexpected, assigned

_COLLECTIONS: Final = ("list", "tuple", "set", "List", "Tuple", "Set")
_WRAPPERS: Final = ("Annotated", "SkipValidation", "Optional", "ClassVar", "Final")


def hints_of(sources: Sources, path: str, node: ast.expr) -> tuple[Hint, ...]:
    """Return the types of a union, following aliases. Raise Unexpected if the expression is not a type."""
    match node:
        case ast.Constant(value=None):
            return (Hint(kind="None"),)
        case ast.Constant(value=str(text)):
            return hints_of(sources, path, ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return hints_of(sources, path, left) + hints_of(sources, path, right)
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return _subscript(sources, path, name, inner)
        case ast.Subscript(value=ast.Attribute(attr=name), slice=inner):
            return _subscript(sources, path, name, inner)
        case ast.Attribute(attr=name):
            return _attribute(sources, path, node, name)
        case ast.Name(id=name):
            return _name(sources, path, name)
    raise Unexpected(f"{path}:{node.lineno}: not a type: {ast.unparse(node)}")


def _subscript(sources: Sources, path: str, name: str, inner: ast.expr) -> tuple[Hint, ...]:
    inside = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Literal":
        values = dict.fromkeys(value for one in inside for value in _values(sources, path, one))
        whole = any(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in inside)
        return (Hint(kind="literal", values=tuple(values), whole=whole),)
    if name == "Union":
        return tuple(hint for one in inside for hint in hints_of(sources, path, one))
    if name in _WRAPPERS:
        return hints_of(sources, path, inside[0]) + ((Hint(kind="None"),) if name == "Optional" else ())
    if name in _COLLECTIONS:
        element = hints_of(sources, path, inside[0])
        literal = len(element) == 1 and element[0].kind == "literal"
        return (Hint(kind="list", values=element[0].values if literal else (), inner=element),)
    return (Hint(kind=name),)


def _values(sources: Sources, path: str, node: ast.expr) -> tuple[str, ...]:
    """Return the values inside Literal[…]; nested literals are flattened, as in typing."""
    if isinstance(node, ast.Constant):
        return (str(node.value),)
    hints = hints_of(sources, path, node)
    if any(hint.kind != "literal" for hint in hints):
        raise Unexpected(f"{path}:{node.lineno}: not a literal: {ast.unparse(node)}")
    return tuple(value for hint in hints for value in hint.values)


def _attribute(sources: Sources, path: str, node: ast.expr, name: str) -> tuple[Hint, ...]:
    """Return the types of `me_quant.QuantizationMethods`: a name in a module that is imported under an alias."""
    module = ast.unparse(node).rpartition(".")[0]
    tree = sources.module(path)
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.asname == module and alias.name.startswith("vllm."):
                    return _name(sources, f"{alias.name.replace('.', '/')}/__init__.py", name)
    return (Hint(kind=name),)


def _name(sources: Sources, path: str, name: str) -> tuple[Hint, ...]:
    """Return the types of a name. An alias is followed once, because aliases of aliases could double without end."""
    known = sources.aliases
    if (path, name) not in known:
        known[path, name] = tuple(dict.fromkeys(_defined(sources, path, name)))
    return known[path, name]


def _defined(sources: Sources, path: str, name: str) -> tuple[Hint, ...]:
    found = sources.find(path, name)
    if found is None:
        return (Hint(kind=name),)
    where, statement = found
    if isinstance(statement, ast.ClassDef):
        decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in statement.decorator_list}
        if any(ast.unparse(base).startswith("dict[") for base in statement.bases):
            return (Hint(kind="dict"),)
        return (Hint(kind="config" if decorators & {"config", "dataclass"} else name, defined=(where, name)),)
    value = assigned(statement)
    return hints_of(sources, where, value) if value is not None else (Hint(kind=name),)
