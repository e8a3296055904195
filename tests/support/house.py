"""Measures of how the package reads: subjects in a file, dense statements, and the walk from a command to its end."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.sources import nodes_of, tree_of

PACKAGE: Final = Path(__file__).parent.parent.parent / "gemmaspec"
FILES: Final = sorted(file for file in PACKAGE.rglob("*.py") if "_data" not in file.parts)

LONG_FILE: Final = 100
"""Lines from which a file is asked how many subjects it has."""
ISLAND: Final = 25
"""Lines of definitions that are a subject of their own."""
DENSE: Final = 60
"""Syntax nodes of a statement that nobody reads in one breath."""
ROW: Final = 20
"""Syntax nodes of a row, one line of a record or table, that is read at a glance."""
FEWEST_ROWS: Final = 4

COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BLOCKS: Final = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.AsyncFor, ast.While, ast.With),
    *(ast.AsyncWith, ast.Try, ast.TryStar, ast.Match),
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(file: Path) -> int:
    """Return how many lines a file has."""
    return len(file.read_text(encoding="utf-8").splitlines())


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets: Iterable[ast.AST] = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def islands(file: Path) -> list[set[str]]:
    """Return the groups of a file's definitions that use each other and nothing of the other groups.

    Only those of ISLAND lines and more, in a file of LONG_FILE lines and more.
    """
    if lines_of(file) < LONG_FILE:
        return []
    definitions = [(set(defined(node)), node) for node in tree_of(file).body if defined(node)]
    groups: list[tuple[set[str], int, set[str]]] = []
    own = set().union(*(names for names, _ in definitions))
    for names, node in definitions:
        used = (_used(node) & own) | names
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        apart = []
        for other in groups:
            if other[2] & used or other[0] & used or names & other[2]:
                names, size, used = names | other[0], size + other[1], used | other[2]
            else:
                apart.append(other)
        groups = [*apart, (names, size, used)]
    return [names for names, size, _ in groups if size >= ISLAND]


def _used(node: ast.AST) -> set[str]:
    found = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    return found | {text.value for text in ast.walk(node) if isinstance(text, ast.Constant) and _is_name(text.value)}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def dense(file: Path) -> list[ast.stmt]:
    """Return the statements of more than DENSE nodes, without those that contain other statements.

    Nobody reads a table at the top of a module in one breath: a row of it is looked up, so its longest row counts.
    """
    tables = [node for node in tree_of(file).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    simple = (node for node in nodes_of(file) if isinstance(node, ast.stmt) and not isinstance(node, _BLOCKS))
    found = []
    for node in simple:
        rows = _table_rows(node) if node in tables else []
        if max((_weight(part) for part in rows), default=0) > DENSE or (not rows and _weight(node) > DENSE):
            found.append(node)
    return found


def _table_rows(table: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """Return the rows of a table; none where something else is assigned, as a call or a comprehension."""
    if isinstance(table.value, ast.Dict):
        return table.value.values
    if isinstance(table.value, ast.Tuple | ast.List | ast.Set):
        return table.value.elts
    return []


def _weight(node: ast.AST) -> int:
    """Return the syntax nodes of an expression or statement.

    A value that a field, an entry or an element only hands on (a name, what a name holds, a constant) is one: it is
    data, and a record of forty fields without a computation is no dense statement.
    """
    is_row = isinstance(node, ast.keyword | ast.Dict | ast.Tuple | ast.List | ast.Set)
    inner = list(ast.iter_child_nodes(node))
    handed_on = sum(1 for part in inner if is_row and _is_plain(part))
    return 1 + handed_on + sum(_weight(part) for part in inner if not (is_row and _is_plain(part)))


def _is_plain(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name | ast.Constant)


def crowded(file: Path) -> list[ast.stmt]:
    """Return the dense statements that are no record or table of one short row a line, which is read row by row."""
    return [statement for statement in dense(file) if not _is_rows(statement)]


def _is_rows(statement: ast.stmt) -> bool:
    rows: list[ast.AST] = []
    for node in ast.walk(statement):
        found = _rows_of(node)
        if len(found) > len(rows) and len({row.lineno for row in found}) == len(found):
            rows = list(found)
    sizes = [sum(1 for _ in ast.walk(row)) for row in rows]
    rest = sum(1 for _ in ast.walk(statement)) - sum(sizes)
    return len(rows) >= FEWEST_ROWS and max(sizes) <= ROW and rest <= DENSE


def _rows_of(node: ast.AST) -> Sequence[ast.expr | ast.keyword]:
    """Return the fields of a call by keywords, or the entries of a list, a set or a mapping."""
    if isinstance(node, ast.Call):
        return node.keywords
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return node.elts
    return ()


def nested(file: Path) -> list[ast.IfExp]:
    """Return the conditional expressions that have another one inside."""
    outer = (node for node in nodes_of(file) if isinstance(node, ast.IfExp))
    return [
        node for node in outer if any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)
    ]


@dataclass
class Walk:
    """A reader who follows a use case from its function, and reads each function where it is called first.

    Calls of functions by name are followed; methods and classes are not, because their type is not in the text. What is
    called where an error is raised or caught lies beside the way. `support/calls.py` counts what really runs.
    """

    read: set[tuple[Path, str]] = field(default_factory=set)
    stays: list[Path] = field(default_factory=list)
    """The files in the order in which he comes into them from another one; going back is not counted."""

    def follow(self, file: Path, name: str, *, came_from: Path | None = None) -> None:
        """Read a function and all that it calls."""
        found = _functions(file).get(name)
        if found is None or (file, name) in self.read:
            return
        self.read.add((file, name))
        if file != came_from:
            self.stays.append(file)
        names = {**_imports(tree_of(file)), **_imports(found)}
        for called in _calls(found):
            if target := _target(file, called, names):
                self.follow(*target, came_from=file)


@functools.cache
def _functions(file: Path) -> dict[str, ast.AST]:
    return {node.name: node for node in tree_of(file).body if isinstance(node, Function)}


def _imports(tree: ast.AST) -> dict[str, str]:
    """Return what imported names of the package stand for."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in found
        if str(node.module).startswith("gemmaspec")
        for alias in node.names
    }


def _calls(function: ast.AST) -> list[ast.expr]:
    """Return what is called, in the order of the text."""
    calls = [node.func for node in _on_the_way(function) if isinstance(node, ast.Call)]
    return sorted(calls, key=lambda called: (called.lineno, called.col_offset))


def _on_the_way(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a node, without what raises an error or catches one."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.Raise | ast.ExceptHandler):
            yield inner
            yield from _on_the_way(inner)


def _target(file: Path, called: ast.expr, names: dict[str, str]) -> tuple[Path, str] | None:
    """Return the function that an expression names, if it is one of the package."""
    if isinstance(called, ast.Name):
        if called.id in _functions(file):
            return file, called.id
        module, _, name = names.get(called.id, "").rpartition(".")
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        module, name = names.get(called.value.id, ""), called.attr
    else:
        return None
    at = PACKAGE.parent / f"{module.replace('.', '/')}.py"
    return (at, name) if module and at in _known() else None


@functools.cache
def _known() -> frozenset[Path]:
    return frozenset(FILES)
