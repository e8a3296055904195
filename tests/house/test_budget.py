"""How much a user has to learn: commands, options, codes and variables. Lines and modules are not bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from gemmaspec.check.lint.check import RULES
from gemmaspec.cli import help as help_
from gemmaspec.cli.app import COMMANDS, app

ROOT: Final = Path(__file__).parent.parent.parent
BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "top-level commands": (24, 24),
    "options": (110, 100),
    "lint codes": (85, 85),
    "environment variables of its own": (8, 12),
}
"""What → the bound, and the goal. A bound has slack of a tenth: it is a thermometer, and no gate that a fix pays at."""


def _used() -> dict[str, int]:
    texts = [file.read_text() for file in (ROOT / "gemmaspec").rglob("*.py")]
    return {
        "top-level commands": sum(map(len, help_.SECTIONS.values())),
        "options": len(set(_options(typer.main.get_command(app)))),
        "lint codes": len({rule.code for rule in RULES}),
        "environment variables of its own": len(
            {one for text in texts for one in re.findall(r"GEMMASPEC_[A-Z_]+", text)}
        ),
    }


def _options(command: Any) -> Iterator[tuple[str, ...]]:
    """Yield the names and the explanation of every option; those for maintainers of patches count nothing."""
    for name, inner in getattr(command, "commands", {}).items():
        if not (command.name == "patch" and name in help_.PATCH_SECTIONS["For maintainers of patches"]):
            yield from _options(inner)
    if not hasattr(command, "commands"):
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                yield (*option.opts, *option.secondary_opts, option.help)


@pytest.mark.parametrize("what", BOUNDS)
def test_a_feature_enters_with_the_one_it_replaces(what: str) -> None:
    bound, goal = BOUNDS[what]
    used = _used()[what]
    assert used <= bound, f"{used} {what}, and {bound} is the most: a feature enters with the one it replaces ({goal=})"


def test_every_command_at_the_top_is_counted() -> None:
    assert len(COMMANDS) == _used()["top-level commands"]
    assert _used().keys() == BOUNDS.keys()
