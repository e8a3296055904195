"""What a patched file's functions are in a running process: digests of code, and the function behind a bound name.

Runs inside vLLM, loaded by attest.py; it imports nothing but the standard library. Two code objects are the same if a
digest of what they do is: names, constants, instructions, exception table and nested code, not file names and lines.
One interpreter computes both sides, so its release and its -O do not matter.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import marshal
import os
import stat
import struct
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import MAGIC_NUMBER as MAGIC
from typing import Any

MISSING = object()
SAME = object()
CLASS_BODY = 0x3  # CO_OPTIMIZED | CO_NEWLOCALS: a function's code has them, a class's body and a module do not
GENERATOR_BASED = 0x100  # CO_ITERABLE_COROUTINE, which types.coroutine sets in the code of a function
DEEPEST = 16  # wrappers around one function
LOOKED_AT = 400  # objects that are searched for a wrapped function
WRAPPERS = {  # by the top module of a wrapper's type: where it keeps the function
    "triton": ("fn",),
    "torch": ("_torchdynamo_orig_callable", "__wrapped__", "_init_fn", "fn"),
    "numba": ("py_func",),
    "wrapt": ("__wrapped__",),
}


def digest(code: types.CodeType) -> str:
    """Return the digest of a code object."""
    return hashlib.sha256(ascii(_parts(code)).encode("ascii")).hexdigest()


def _parts(code: types.CodeType) -> tuple[Any, ...]:
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~GENERATOR_BASED)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    own = (code.co_name, getattr(code, "co_qualname", ""), getattr(code, "co_exceptiontable", b""))
    return (*own, *numbers, *names, code.co_code, tuple(map(_constant, code.co_consts)))


def _constant(value: Any) -> Any:
    """Return a constant with its type: 1, 1.0 and True are equal, and a frozenset has no order."""
    if isinstance(value, types.CodeType):
        return _parts(value)
    if isinstance(value, (tuple, frozenset)):
        inside = [_constant(one) for one in value]
        return type(value).__name__, sorted(inside, key=ascii) if isinstance(value, frozenset) else inside
    return type(value).__name__, ascii(value)


def functions_of(code: types.CodeType, above: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """Yield the functions of a module or class body by qualified name; what is nested in one is part of it."""
    for one in code.co_consts:
        if not isinstance(one, types.CodeType):
            continue
        name = f"{above}{one.co_name}"
        if one.co_name.startswith("<generic parameters of"):  # of Python 3.12
            yield from functions_of(one, above)
        elif one.co_name.startswith("<"):
            continue
        elif one.co_flags & CLASS_BODY:
            yield name, one
        else:
            yield from functions_of(one, f"{name}.")


def compiled(data: bytes, path: str) -> types.CodeType:
    """Return the code of a file of the overlay, as its import has compiled it, or else compiled now.

    Its __pycache__ is as new as the overlay, so what is in it was compiled from this file, if it bears its time and
    size. Raise SyntaxError or ValueError for what does not compile.
    """
    tag, level = sys.implementation.cache_tag, sys.flags.optimize
    folder, name = os.path.split(path)
    kept = os.path.join(folder, "__pycache__", f"{name[:-3]}.{tag}{f'.opt-{level}' if level else ''}.pyc")
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
        seen = os.stat(path, follow_symlinks=False)
        opened = os.open(kept, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            head = file.read(16)
            fresh = MAGIC + b"\0\0\0\0" + struct.pack("<II", int(seen.st_mtime) & 0xFFFFFFFF, seen.st_size & 0xFFFFFFFF)
            if head == fresh and stat.S_ISREG(seen.st_mode):
                code = marshal.load(file)  # noqa: S302 - what this Python has just imported
                if isinstance(code, types.CodeType):
                    return code
    return compile_now(data, path)


def compile_now(data: bytes, path: str) -> types.CodeType:
    """Return the code of a file, compiled as its import would. Raise SyntaxError or ValueError."""
    return compile(data, path, "exec", dont_inherit=True)


def wanted(module: types.CodeType, data: bytes, hunks: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the digests of the functions that the hunks changed, by qualified name, from a patched file's code.

    A name that is defined twice has both digests. A hunk outside functions gives none: only the file is attested.
    """
    found = list(functions_of(module))
    known = {name for name, _ in found}
    names: set[str] = set()
    lines = [line.decode("utf-8", "replace") for line in data.splitlines()]
    for hunk in hunks:
        parts = hunk["scope"].split(".")
        heads = {".".join(parts[: count + 1]) for count in range(len(parts))} & known
        names |= heads or {name for name, code in found if _touches(code, _changed(hunk, lines))}
    result: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for name, code in found:
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
    own = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
    return max([own, *(_last(one) for one in code.co_consts if isinstance(one, types.CodeType))])


def bound(module: Any, name: str) -> Any:
    """Return what is bound under a qualified name now, without running a descriptor; MISSING if nothing is."""
    head, *rest = name.split(".")
    found = vars(module).get(head, MISSING)
    for part in rest:
        if not isinstance(found, type):
            return MISSING
        found = next((vars(one)[part] for one in found.__mro__ if part in vars(one)), MISSING)
    return found


def difference(module: Any, name: str, digests: Iterable[str], of: Digests) -> tuple[Any, list[str]]:
    """Return what is bound under a name instead of the patched function, and the names of wrappers around it.

    The first value is SAME if it is the patched function, possibly in wrappers that hold it.
    """
    found = bound(module, name)
    if found is MISSING:
        return MISSING, []
    through: list[str] = []
    for function in _behind(found, through):
        same = isinstance(function, types.FunctionType) and of(function.__code__) in set(digests)
        if not same or function.__globals__ is not vars(module):
            return function, through
    return SAME, through


class Digests:
    """Digests of code objects, each computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[types.CodeType, str]] = {}

    def __call__(self, code: types.CodeType) -> str:
        """Return the digest of a code object, which is kept alive so that its id stays its own."""
        if id(code) not in self._known:
            self._known[id(code)] = (code, digest(code))
        return self._known[id(code)][1]


def _behind(found: Any, through: list[str], depth: int = 0) -> Iterator[Any]:
    """Yield the functions behind a bound object: one, or those of a property."""
    if isinstance(found, property):
        for one in (found.fget, found.fset, found.fdel):
            if one is not None:
                yield from _behind(one, through, depth + 1)
        return
    inner = _inner(found) if depth < DEEPEST else MISSING
    if inner is MISSING:
        yield found
        return
    if not isinstance(found, (staticmethod, classmethod)) and not type(found).__module__.startswith("triton."):
        through.append(described(found))  # @triton.jit is how a kernel is written, and wraps nothing
    yield from _behind(inner, through, depth + 1)


def _inner(found: Any) -> Any:
    """Return what a known kind of wrapper wraps; MISSING for anything else."""
    if isinstance(found, (staticmethod, classmethod, types.MethodType)):
        return found.__func__
    if isinstance(found, (functools.partial, functools.partialmethod, functools.cached_property)):
        return found.func
    if isinstance(found, types.FunctionType):
        names: tuple[str, ...] = ("__wrapped__", "_torchdynamo_orig_callable")
    elif type(found).__name__ == "_lru_cache_wrapper":
        return found.__wrapped__
    else:
        names = WRAPPERS.get(type(found).__module__.partition(".")[0], ("__wrapped__",))
    for name in names:
        inner = getattr(found, "__dict__", {}).get(name, MISSING)
        if inner is MISSING and not isinstance(found, types.FunctionType):
            inner = getattr(found, name, MISSING) if type(found).__module__.partition(".")[0] in WRAPPERS else MISSING
        # functools.wraps copies a name onto anything: a wrapper that does not hold the function cannot call it.
        if inner is not MISSING and (type(found).__module__.partition(".")[0] in WRAPPERS or _holds(found, inner)):
            return inner
    return MISSING


def _holds(wrapper: Any, inner: Any) -> bool:
    """Return whether a wrapper can reach a function other than by __wrapped__: by its closure, defaults, globals."""
    seen: set[int] = set()
    waiting = [(one, 0) for one in _reached(wrapper)]
    while waiting and len(seen) < LOOKED_AT:
        one, depth = waiting.pop(0)
        if one is inner:
            return True
        if id(one) not in seen and depth < 3:
            seen.add(id(one))
            waiting += [(more, depth + 1) for more in _reached(one)]
    return False


def _reached(one: Any) -> list[Any]:
    if isinstance(one, types.FunctionType):
        cells = [_content(cell) for cell in one.__closure__ or ()]
        named = [one.__globals__.get(name) for name in one.__code__.co_names]
        return [*cells, *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values(), *named]
    if isinstance(one, (types.ModuleType, type)):
        return []
    if isinstance(one, Mapping):
        return list(one.values())[:LOOKED_AT]
    if isinstance(one, (list, tuple, set)):
        return list(one)[:LOOKED_AT]
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    inside = getattr(one, "__dict__", None)
    return [value for name, value in inside.items() if name != "__wrapped__"] if isinstance(inside, dict) else []


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def described(found: Any) -> str:
    """Return what a bound object is, and where it was defined, in one line."""
    if found is MISSING:
        return "nothing"
    code = getattr(found, "__code__", None)
    name = getattr(found, "__qualname__", None) or type(found).__qualname__
    module = getattr(found, "__module__", None) or type(found).__module__
    where = f" ({code.co_filename}:{code.co_firstlineno})" if isinstance(code, types.CodeType) else ""
    return f"{module}.{name}{where}"[:400]


def file_of(module: Any) -> str:
    """Return where a module was loaded from; "" if it does not say."""
    spec = getattr(module, "__spec__", None)
    return str(getattr(spec, "origin", None) or getattr(module, "__file__", None) or "")


def same_file(one: str, other: str) -> bool:
    """Return whether two paths are one file."""
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False
