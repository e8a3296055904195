"""What tests put something in the place of: it exists, and it is little, because a test that does so knows the rooms.

A move within the package is seen here, and not test by test.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent.parent
_DOTTED: Final = re.compile(r"gemmaspec(\.\w+)+")
MOST: Final = 76
"""How often tests may call `monkeypatch.setattr` or `mock.patch`: what it was when it was last lowered, and a tenth.

It is lowered, never raised. What a test gives instead is a parameter of the use case, a fake engine (support/), a
server that answers, a program on the PATH, a variable of the environment or a file.
"""


def patched(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file gives to `setattr` as text."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"):
            continue
        name = node.args[0] if node.args else None
        if isinstance(name, ast.Constant) and _DOTTED.fullmatch(str(name.value)):
            yield str(name.value)


def places(tree: ast.AST) -> Iterator[str]:
    """Yield each call that puts something in the place of an attribute for as long as a test runs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(".setattr") or re.search(r"\bmock\.patch\b", called):
                yield called


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
    assert names
    assert {name: file.name for name, file in names.items() if not exists(name)} == {}


def test_a_name_that_is_gone_is_seen() -> None:
    tree = ast.parse(
        'monkeypatch.setattr("gemmaspec.serve.up.gone", None)\nmonkeypatch.setattr("gemmaspec.serve.up.up", 1)'
    )
    assert [(name, exists(name)) for name in patched(tree)] == [
        ("gemmaspec.serve.up.gone", False),
        ("gemmaspec.serve.up.up", True),
    ]


def test_tests_patch_no_more_than_they_did() -> None:
    found = sum(len(list(places(ast.parse(file.read_text("utf-8"))))) for file in TESTS.rglob("*.py"))
    assert 0 < found <= MOST, f"{found} calls of monkeypatch.setattr and mock.patch, and {MOST} is the bound"


def test_each_way_to_patch_is_counted() -> None:
    text = "m.setattr(a, 'b', 1)\nmock.patch('a.b')\nmock.patch.object(a, 'b')\nsetattr(a, 'b', 1)\npatch(OLD, NEW)"
    assert list(places(ast.parse(text))) == ["m.setattr", "mock.patch", "mock.patch.object"]
