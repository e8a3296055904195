"""How much gemmaspec may be. Each bound can only fall: a feature enters with the one it replaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from gemmaspec.check.lint.check import RULES
from gemmaspec.cli import help as help_
from tests.test_docs import PAGES

ROOT: Final = Path(__file__).parent.parent
_NOT_COUNTED: Final = ("CONTRIBUTING.md", "failures.md")
"""Failures are rows of data, of which there can be as many as vLLM has."""
BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "top-level commands": (24, 24),
    "options in the reference": (100, 100),
    "lint codes": (71, 85),
    "environment variables of its own": (6, 12),
    "modules": (311, 320),
    "package lines": (56_505, 48_000),
    "words of the docs": (41_396, 42_000),
}
"""What → the bound, and the goal. Whoever takes something out lowers the bound to the new figure; nobody raises it."""


def _used() -> dict[str, int]:
    files = list((ROOT / "gemmaspec").rglob("*.py"))
    texts = [file.read_text() for file in files]
    commands = (ROOT / "docs" / "reference" / "commands.md").read_text()
    return {
        "top-level commands": sum(map(len, help_.SECTIONS.values())),
        "options in the reference": len(re.findall(r"^- `-", commands, re.MULTILINE)),
        "lint codes": len({rule.code for rule in RULES}),
        "environment variables of its own": len(
            {one for text in texts for one in re.findall(r"GEMMASPEC_[A-Z_]+", text)}
        ),
        "modules": len(files),
        "package lines": sum(len(text.splitlines()) for text in texts),
        "words of the docs": sum(len(file.read_text().split()) for file in PAGES if file.name not in _NOT_COUNTED),
    }


@pytest.mark.parametrize("what", BOUNDS)
def test_a_feature_enters_with_the_one_it_replaces(what: str) -> None:
    bound, goal = BOUNDS[what]
    used = _used()[what]
    assert used <= bound, f"{used} {what}, and {bound} is the most: a feature enters with the one it replaces ({goal=})"


def test_every_command_at_the_top_is_counted() -> None:
    from gemmaspec.cli.app import _MODULES

    assert len(_MODULES) == _used()["top-level commands"]
    assert _used().keys() == BOUNDS.keys()
