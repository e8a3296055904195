"""What the package's own files say, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file. It is shared: change nothing in it."""
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of that tree."""
    return tuple(ast.walk(tree_of(file)))
