"""An engine is asked for what it can, never for its name: a third one falls through no comparison."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import gemmaspec
from gemmaspec.core.profile.engines import ENGINES, EngineName, engine_of_files, other_engines, uses_image
from gemmaspec.run.engine.choose import engine_named
from tests.support.sources import tree_of

PACKAGE = Path(gemmaspec.__file__).parent
NAMES = set(get_args(EngineName))


def compared(tree: ast.AST) -> Iterator[int]:
    """Lines that compare something with the name of an engine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            words = {word.value for part in parts for word in ast.walk(part) if isinstance(word, ast.Constant)}
            named = any(
                (isinstance(part, ast.Name | ast.Attribute) and "engine" in ast.unparse(part).lower())
                or (isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) == "forced")
                for part in parts
            )
            if words & NAMES and named:
                yield node.lineno


def test_nobody_compares_an_engine_with_a_name() -> None:
    found = {
        f"{file.relative_to(PACKAGE)}:{line}" for file in PACKAGE.rglob("*.py") for line in compared(tree_of(file))
    }
    assert found == set()


def test_a_comparison_is_found() -> None:
    for code in (
        'engine == "docker"',
        'started.engine != "process"',
        'engine.name in ("docker", "x")',
        'forced == "docker"',
    ):
        assert list(compared(ast.parse(code))) == [1]
    assert list(compared(ast.parse('key == "docker"'))) == []


@pytest.mark.parametrize("name", get_args(EngineName))
def test_every_engine_has_its_properties_and_its_class(name: EngineName) -> None:
    assert engine_named(name).name == name
    assert name not in other_engines(name)
    assert other_engines(name)
    assert uses_image(name) == (ENGINES[name].file is not None)


def test_a_stack_without_a_record_is_known_by_its_files() -> None:
    assert engine_of_files(frozenset({"compose.yaml", "plan.json"})) == "docker"
    assert engine_of_files(frozenset({"plan.json"})) == engine_of_files(frozenset()) == "process"
