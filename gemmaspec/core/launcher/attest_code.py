"""What a patched file has to be in a running process, and what is bound there instead.

Runs inside vLLM, loaded by attest.py; it imports nothing but the standard library. A patched function is compared by a
digest of what its code does (names, constants, instructions, exception table and nested code, not file names and lines)
and by its defaults; one interpreter computes both sides, so its release and its -O do not matter. A kernel of Triton is
compared by the source that Triton compiles, and a name of the module or a class that a hunk assigns by its value.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import hashlib
import sys
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MISSING = object()
CLASS_BODY = 0x3  # CO_OPTIMIZED | CO_NEWLOCALS: a function's code has them, a class's body and a module do not
GENERATOR_BASED = 0x100  # CO_ITERABLE_COROUTINE, which types.coroutine sets in the code of a function
DEEPEST = 6  # steps from a bound object to the function in it
LOOKED_AT = 2000  # objects that are searched for a function
BY_NAME = {"numba": "py_func", "wrapt": "__wrapped__"}  # wrappers that keep their function in C, by top module
SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
CHANGES = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("update", "setdefault", "add", "discard"),
}


@dataclass
class Function:
    """What a patched function has to be; one that is defined twice may be either."""

    codes: set[str] = field(default_factory=set)
    defaults: list[dict[Any, Any]] = field(default_factory=list)
    """Of each definition, its defaults that are constants: by position, or by keyword."""
    sources: set[str] = field(default_factory=set)
    """Its syntax trees without decorators, for Triton."""


@dataclass
class Expected:
    """What the patched names of a file have to be."""

    functions: dict[str, Function]
    values: dict[str, Any]


@dataclass
class Difference:
    """How a bound object differs from the patched one: not at all, if `what` is empty."""

    what: str = ""
    found: Any = None
    through: str = ""
    """The wrapper that holds the function, if there is one."""


def expected(file: Mapping[str, Any]) -> Expected:
    """Return what a file of targets.json has to be. Raise OSError, SyntaxError or ValueError if that is not known."""
    data = str(file["text"]).encode("latin-1")
    with contextlib.suppress(FileNotFoundError):  # something may have cleaned it away after the import
        with open(file["file"], "rb") as opened:
            sha256 = hashlib.sha256(opened.read()).hexdigest()
        if sha256 != file["sha256"]:
            raise ValueError(f"it was changed since the launcher wrote it: sha256 {sha256[:12]}…")
    code = compile(data, file["file"], "exec", dont_inherit=True)
    functions = {name: Function(codes=set(codes)) for name, codes in wanted(code, data, file["hunks"]).items()}
    tree = ast.parse(data)
    lines = [line.decode("utf-8", "replace") for line in data.splitlines()]
    changed = {number for hunk in file["hunks"] for number in _changed(hunk, lines)}
    values: dict[str, Any] = {}
    for above, node in _statements(tree, ""):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if function := functions.get(above + node.name):
                function.defaults.append(_constant_defaults(node.args))
                function.sources.add(_source(node))
        elif changed & set(range(node.lineno, (node.end_lineno or 0) + 1)):
            values |= {above + name: value for name, value in _constants(node) if not _changes(tree, name)}
    return Expected(functions, values)


def _statements(node: ast.AST, above: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and assignments of a module and its classes, each with the name of what holds it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _statements(child, f"{above}{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign)):
            yield above, child
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _statements(child, above)


def _constants(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names that an assignment binds to a value made of constants."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    else:
        targets = [node.target]
    with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        if node.value is not None:
            value = ast.literal_eval(node.value)
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def _changes(tree: ast.AST, name: str) -> bool:
    """Return whether a file binds a name more than once, or changes what it names: then its value is not known."""
    bound = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            bound += 1
        holder = getattr(node, "value", None)
        named = isinstance(holder, ast.Name) and holder.id == name
        if isinstance(node, ast.Subscript) and named and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Attribute) and named and node.attr in CHANGES:
            return True
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return True
    return bound != 1


def _constant_defaults(arguments: ast.arguments) -> dict[Any, Any]:
    rows: list[tuple[Any, Any]] = [*enumerate(arguments.defaults)]
    rows += [(arg.arg, value) for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    return {key: value.value for key, value in rows if isinstance(value, ast.Constant)}


def _source(node: Any) -> str:
    """Return a function's syntax tree as text, without its decorators and its place."""
    node.decorator_list = []
    return ast.dump(node)


def digest(code: types.CodeType) -> str:
    """Return the digest of a code object."""
    return hashlib.sha256(ascii(_parts(code)).encode("ascii")).hexdigest()


def _parts(code: types.CodeType) -> tuple[Any, ...]:
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~GENERATOR_BASED)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    named = (code.co_name, getattr(code, "co_qualname", ""), getattr(code, "co_exceptiontable", b""))
    return (*named, *numbers, *names, code.co_code, tuple(map(_constant, code.co_consts)))


def _constant(value: Any) -> Any:
    """Return a constant with its type: 1, 1.0 and True are equal, and a frozenset has no order."""
    if isinstance(value, types.CodeType):
        return _parts(value)
    if isinstance(value, (tuple, frozenset)):
        inside = [_constant(value_inside) for value_inside in value]
        return type(value).__name__, sorted(inside, key=ascii) if isinstance(value, frozenset) else inside
    return type(value).__name__, ascii(value)


def functions_of(code: types.CodeType, above: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """Yield the functions of a module or class body by qualified name; what is nested in one is part of it."""
    for const in code.co_consts:
        if not isinstance(const, types.CodeType):
            continue
        name = f"{above}{const.co_name}"
        if const.co_name.startswith("<generic parameters of"):  # of Python 3.12
            yield from functions_of(const, above)
        elif const.co_name.startswith("<"):
            continue
        elif const.co_flags & CLASS_BODY:
            yield name, const
        else:
            yield from functions_of(const, f"{name}.")


def wanted(module: types.CodeType, data: bytes, hunks: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the digests of the functions that the hunks changed, by qualified name, from a patched file's code.

    A name that is defined twice has both digests. A hunk outside functions gives none.
    """
    functions = list(functions_of(module))
    known = {name for name, _ in functions}
    names: set[str] = set()
    lines = [line.decode("utf-8", "replace") for line in data.splitlines()]
    for hunk in hunks:
        parts = hunk["scope"].split(".")
        heads = {".".join(parts[: count + 1]) for count in range(len(parts))} & known
        names |= heads or {name for name, code in functions if _touches(code, _changed(hunk, lines))}
    result: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for name, code in functions:
        if name in result:
            result[name].append(digest(code))
    return result


def _changed(hunk: Mapping[str, Any], lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines that a hunk brought, counted from 1."""
    new, old = list(hunk["new"]), list(hunk["old"])
    if new[-len(old) :] == old and not _starts(new, lines):
        new = new[: -len(old)]  # decorators stand between what was put before a definition and its first line
    places, size = _starts(new, lines), len(new)
    fresh = [number for number, line in enumerate(new) if line not in hunk["old"]] or range(size)
    return {index + number + 1 for index in places for number in fresh}


def _starts(block: Sequence[str], lines: Sequence[str]) -> list[int]:
    size = len(block)
    starts = [index for index in range(len(lines) - size + 1) if block and lines[index] == block[0]]
    return [index for index in starts if list(lines[index : index + size]) == list(block)]


def _touches(code: types.CodeType, lines: set[int]) -> bool:
    return bool(lines) and any(code.co_firstlineno <= line <= _last(code) for line in lines)


def _last(code: types.CodeType) -> int:
    last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
    return max([last, *(_last(const) for const in code.co_consts if isinstance(const, types.CodeType))])


def bound(module: Any, name: str) -> Any:
    """Return what is bound under a qualified name now, without running a descriptor; MISSING if nothing is."""
    head, *rest = name.split(".")
    value = vars(module).get(head, MISSING)
    for part in rest:
        if not isinstance(value, type):
            return MISSING
        value = next((vars(kind)[part] for kind in value.__mro__ if part in vars(kind)), MISSING)
    return value


def names(module: Any, wants: Expected) -> Iterator[tuple[str, Difference]]:
    """Yield every patched name of a module, and how what is bound to it differs."""
    for name, function in wants.functions.items():
        yield name, difference(module, name, function)
    for name, value in wants.values.items():
        now = bound(module, name)
        if now is MISSING:
            yield name, Difference("nothing", now)
        elif _same(value, now):
            yield name, Difference()
        else:
            yield name, Difference(ascii(now)[:200], now)


def _same(value: Any, other: Any) -> bool:
    """Return whether two values are equal in type and value, however deep."""
    if type(value) is not type(other):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(_same(value, other[key]) for key, value in value.items())
    return value == other if isinstance(value, (set, frozenset)) else ascii(value) == ascii(other)


def difference(module: Any, name: str, wants: Function) -> Difference:
    """Return how what is bound under a name differs from the patched function; a wrapper that holds it is told."""
    value = bound(module, name)
    if value is MISSING:
        return Difference("nothing")
    accessors = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
    told = [_behind(accessor, module, wants) for accessor in accessors if accessor is not None]
    return next((row for row in told if row.what), told[0] if told else Difference("a property without a function"))


def _behind(value: Any, module: Any, wants: Function) -> Difference:
    """Search a bound object for the patched function, the nearest objects first."""
    waiting: collections.deque[tuple[Any, int]] = collections.deque([(value, 0)])
    seen: set[int] = set()
    kept = []  # what was found on the way, so that no id is used twice
    while waiting and len(seen) < LOOKED_AT:
        thing, depth = waiting.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kept.append(thing)
        if isinstance(thing, types.FunctionType) and digest(thing.__code__) in wants.codes:
            if vars(module) is thing.__globals__:
                return _function(value, thing, wants)
        elif is_kernel(thing) and (wrong := _kernel(thing, wants)):
            return Difference(wrong, thing)
        if depth < DEEPEST:
            waiting.extend((more, depth + 1) for more in _reached(thing))
    return Difference(described(value), value)


def _function(value: Any, function: types.FunctionType, wants: Function) -> Difference:
    given: dict[Any, Any] = dict(enumerate(function.__defaults__ or ()))
    given |= function.__kwdefaults__ or {}
    fits = (all(key in given and _same(value, given[key]) for key, value in each.items()) for each in wants.defaults)
    if wants.defaults and not any(fits):
        return Difference(f"called with other defaults: {ascii(given)[:200]}", function)
    if isinstance(value, (staticmethod, classmethod)):
        called = value.__func__
    else:
        called = value
    plain = called is function or is_kernel(called) or _is_door(called)
    return Difference(through="" if plain else f"called through {described(called)}")


def _is_door(value: Any) -> bool:
    return getattr(getattr(value, "__code__", None), "co_name", "") == "gemmaspec_looks"


def is_kernel(value: Any) -> bool:
    """Return whether an object is what triton.jit makes of a function."""
    return type(value).__module__.startswith("triton.") and "fn" in _inside(value)


def _kernel(kernel: Any, wants: Function) -> str:
    """Return how a kernel of Triton differs from the patched source, as far as it keeps one; "" if it does not."""
    inside = _inside(kernel)
    function, source = inside["fn"], next((inside[name] for name in ("_src", "src") if name in inside), None)
    if not isinstance(function, types.FunctionType) or digest(function.__code__) not in wants.codes:
        return ""  # a kernel that the function only calls, or one around another
    if not _is_where_it_says(type(kernel)):
        return f"an object of {described(type(kernel))}, which only calls itself Triton's"
    if launched := _launched_by(kernel, inside.get("run", MISSING)):
        return launched
    parameters, code = inside.get("params"), function.__code__
    if isinstance(parameters, list) and len(parameters) != code.co_argcount + code.co_kwonlyargcount:
        return f"a kernel with {len(parameters)} parameters in place of the function's"
    if not isinstance(source, str) or not wants.sources:
        return ""
    with contextlib.suppress(SyntaxError, ValueError, IndexError):
        if _source(ast.parse(source).body[0]) in wants.sources:
            return ""
    return "compiled by Triton from another source"


def _is_where_it_says(kind: type) -> bool:
    """Return whether a class is the one that its module has under its name."""
    module = sys.modules.get(kind.__module__)
    return module is not None and vars(module).get(kind.__name__) is kind


def _launched_by(kernel: Any, launches: Any) -> str:
    """Return what launches a kernel in place of Triton, by an attribute of its own; "" for nothing."""
    if launches is MISSING or launches is None:
        return ""
    if isinstance(launches, types.MethodType):
        own = launches.__self__ is kernel
        if own and _is_of_triton(launches.__func__):
            return ""
        return f"launched by {described(launches.__func__)}"
    held = [_content(cell) for cell in getattr(launches, "__closure__", None) or ()]
    others = any(is_kernel(thing) and thing is not kernel for thing in held)
    if _is_of_triton(launches) and not others:
        return ""
    return f"launched by {described(launches)}"


def _is_of_triton(function: Any) -> bool:
    """Return whether a function was defined in a module of Triton that is imported."""
    if not isinstance(function, types.FunctionType):
        return False
    name = str(function.__globals__.get("__name__", ""))
    module = sys.modules.get(name)
    return name.startswith("triton.") and module is not None and vars(module) is function.__globals__


def _inside(value: Any) -> dict[str, Any]:
    """Return an object's attributes without running anything of it: its __dict__ and its __slots__."""
    attributes: dict[str, Any] = {}
    with contextlib.suppress(AttributeError, TypeError):
        attributes |= object.__getattribute__(value, "__dict__")
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType) and name not in ("__dict__", "__wrapped__"):
                with contextlib.suppress(AttributeError, TypeError):
                    attributes[name] = slot.__get__(value)
    return attributes


def _reached(value: Any) -> list[Any]:
    """Return what an object holds in a way in which it can call it; __wrapped__ alone is only a name."""
    if isinstance(value, types.FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        used = _names_in(value.__code__)
        named = [value.__globals__[part] for part in used if part in value.__globals__]
        inside = [
            value
            for holder in [*cells, *named]
            if isinstance(holder, (types.ModuleType, type))
            for part, value in list(vars(holder).items())
            if part in used
        ]
        own = [value for name, value in vars(value).items() if name != "__wrapped__"]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *own, *named, *inside]
    if isinstance(value, (types.ModuleType, type, str, bytes, int, float)):
        return []
    if isinstance(value, weakref.ReferenceType):
        return [weakref.ReferenceType.__call__(value)]
    if isinstance(value, dict):
        return list(dict.values(value))[:LOOKED_AT]
    if is_kernel(value):
        return [_inside(value)["fn"]]  # what it launches; an autotuner may keep others
    for kind in SEQUENCES:
        if isinstance(value, kind):
            return list(kind.__iter__(value))[:LOOKED_AT]
    kept = BY_NAME.get(type(value).__module__.partition(".")[0])
    if type(value).__name__ == "_lru_cache_wrapper" or kept:
        return [getattr(value, kept or "__wrapped__", None)]
    return [value for name, value in _inside(value).items() if name != "__wrapped__"]


def _names_in(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def described(value: Any) -> str:
    """Return what a bound object is, and where it was defined, in one line; nothing of the object is run."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, types.ModuleType):
        return f"another module ({file_of(value) or 'without a file'})"
    plain = isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type))
    if plain:
        names_of = {name: getattr(value, name) for name in ("__module__", "__qualname__")}
    else:
        names_of = _inside(value)
    if isinstance(value, types.FunctionType):
        code = value.__code__
    else:
        code = None
    name = names_of.get("__qualname__") or type(value).__qualname__
    if code:
        where = f" ({code.co_filename}:{code.co_firstlineno})"
    else:
        where = ""
    return f"{names_of.get('__module__') or type(value).__module__}.{name}{where}"[:400]


def file_of(module: Any) -> str:
    """Return where a module was loaded from; "" if it does not say."""
    spec = getattr(module, "__spec__", None)
    return str(getattr(spec, "origin", None) or getattr(module, "__file__", None) or "")
