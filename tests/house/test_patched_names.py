"""What a test puts something in the place of exists: a move within the package is seen here, and not test by test."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent.parent
_DOTTED: Final = re.compile(r"gemmaspec(\.\w+)+")


def patched(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file gives to `setattr` as text."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"):
            continue
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Constant) and _DOTTED.fullmatch(str(name.value)):
            yield str(name.value)


def exists(name: str) -> bool:
    """Return whether a name can be patched: a module of the package, and what is in it."""
    parts, found = name.split("."), importlib.import_module("gemmaspec")
    for number, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:number]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def test_every_name_that_a_test_patches_exists() -> None:
    names = {name: file for file in TESTS.rglob("*.py") for name in patched(ast.parse(file.read_text("utf-8")))}
    assert len(names) > 20
    assert {name: file.name for name, file in names.items() if not exists(name)} == {}


def test_a_name_that_is_gone_is_seen() -> None:
    tree = ast.parse(
        'monkeypatch.setattr("gemmaspec.serve.up.gone", None)\nmonkeypatch.setattr("gemmaspec.serve.up.up", 1)'
    )
    assert [(name, exists(name)) for name in patched(tree)] == [
        ("gemmaspec.serve.up.gone", False),
        ("gemmaspec.serve.up.up", True),
    ]
