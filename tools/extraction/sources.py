"""The Python files of one vLLM release, parsed but never imported, and where names are defined in them."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

Read = Callable[[str], bytes | None]
"""From a path such as vllm/….py to its content; None if the file is missing."""

_DEEPEST: Final = 12
"""How many imports and aliases to follow for one name."""


class Unexpected(Exception):
    """An error for code of vLLM in an unknown form; the message says where."""


@dataclass(frozen=True, kw_only=True)
class Hint:
    """One type of a union."""

    kind: str
    """`literal`, `config` (a dataclass), `list` (any collection), or the type's own name."""
    values: tuple[str, ...] = ()
    """The values of a literal, or of a list of literals."""
    inner: tuple[Hint, ...] = ()
    """The types in a list."""
    defined: tuple[str, str] | None = None
    """File and name of a class of vLLM."""
    whole: bool = False
    """Whether the values of a literal are numbers."""


class Sources:
    """The files that `read` returns, each parsed once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._parsed: dict[str, ast.Module | None] = {}
        self.aliases: dict[tuple[str, str], tuple[Hint, ...]] = {}
        """The types of names of a file, as far as they were looked up (hints.py)."""

    def parsed(self, path: str) -> ast.Module | None:
        """Return a file's syntax tree; None if it is missing. Raise Unexpected if it is not valid Python."""
        if path not in self._parsed:
            self._parsed[path] = self._parse(path)
        return self._parsed[path]

    def module(self, path: str) -> ast.Module:
        """Return the tree as `parsed` does. Raise Unexpected if the file is missing."""
        if (tree := self.parsed(path)) is None:
            raise Unexpected(f"{path} is missing")
        return tree

    def find(self, path: str, name: str, depth: int = 0) -> tuple[str, ast.stmt] | None:
        """Return the file and the statement that define a top-level name, following imports from vllm."""
        tree = self.parsed(path)
        if tree is None or depth > _DEEPEST:
            return None
        for statement in flattened(tree.body):
            if name in _defined(statement):
                return path, statement
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self._imported(path, statement, alias.name, depth)
        return None

    def class_of(self, path: str, name: str) -> tuple[str, ast.ClassDef]:
        """Return the file and the definition of a class that is visible in a file.

        Raise Unexpected if it is missing.
        """
        found = self.find(path, name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            raise Unexpected(f"{path}: {name} is not a class of vllm")
        return found[0], found[1]

    def fields(self, path: str, name: str) -> dict[str, tuple[str, ast.AnnAssign]]:
        """Return the annotated fields of a class and of its bases in vllm, each with its file."""
        where, found = self.class_of(path, name)
        fields: dict[str, tuple[str, ast.AnnAssign]] = {}
        for base in found.bases:
            if isinstance(base, ast.Name) and self.find(where, base.id):
                fields |= self.fields(where, base.id)
        for statement in found.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                fields[statement.target.id] = (where, statement)
        return fields

    def _imported(self, path: str, statement: ast.ImportFrom, name: str, depth: int) -> tuple[str, ast.stmt] | None:
        folder = path.rpartition("/")[0].split("/")
        parent = folder[: len(folder) - statement.level + 1] if statement.level else []
        parts = [*parent, *(statement.module or "").split(".")] if statement.module else parent
        if not parts or parts[0] != "vllm":
            return None
        base = "/".join(parts)
        for candidate in (f"{base}.py", f"{base}/__init__.py"):
            if self.parsed(candidate) is not None:
                return self.find(candidate, name, depth + 1)
        return None

    def _parse(self, path: str) -> ast.Module | None:
        content = self._read(path)
        if content is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Unexpected(f"{path} is not valid Python") from None


def flattened(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the top-level statements in order, including those under `if` and `try`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from flattened([*statement.body, *statement.orelse])


def method_of(found: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """Return a method that a class itself defines."""
    return next((one for one in found.body if isinstance(one, ast.FunctionDef) and one.name == name), None)


def assigned(statement: ast.stmt) -> ast.expr | None:
    """Return the right-hand side of an assignment or type alias."""
    match statement:
        case ast.Assign(value=value) | ast.AnnAssign(value=value):
            return value
    alias = getattr(ast, "TypeAlias", None)
    return statement.value if alias and isinstance(statement, alias) else None


def constant(node: ast.expr | None) -> str | None:
    """Return the text of a string constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _defined(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    target = getattr(statement, "name", None)  # type X = …, of Python 3.12
    return {target.id} if isinstance(target, ast.Name) else set()
