"""Who may import whom: the arrows of docs/design.md, enforced."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gemmaspec"

ROOMS = {
    "cli": 5,
    "carry": 4,
    "deploy": 4,
    "proof": 4,
    "engine": 3,
    "ready": 3,
    "runtime": 3,
    "models": 3,
    "trees": 3,
    "fit": 2,
    "lint": 2,
    "stack": 2,
    "lock": 2,
    "doctor": 2,
    "checkpoint": 1,
    "patching": 1,
    "profile": 1,
    "releases": 1,
    "launcher": 0,
    "tiny": 0,
}
"""Rooms by height: an import goes down, never up or sideways."""

PURE = ("stack", "lock", "doctor", "fit", "lint", "checkpoint", "patching", "profile", "releases")
WORLD = {
    "docker",
    "httpx",
    "socket",
    "subprocess",
    "time",
    "huggingface_hub",
    "psutil",
    "requests",
    "asyncio",
    "threading",
}
ALLOWED_SIDEWAYS = {
    ("ready", "engine"),
    ("trees", "engine"),
    ("patching", "releases"),
    ("carry", "deploy"),
    ("carry", "proof"),
}
"""Readiness watches an engine through its protocol, trees are read through one; patches read facts about
releases; a running stack is a tree to verify, and the shipped profiles are judged on release day."""


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


FILES = sorted(file for file in PACKAGE.rglob("*.py") if "_data" not in file.parts)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_from_rooms_below_its_own(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0]
    if room not in ROOMS:
        assert not [
            name
            for name in imports(file)
            if name.startswith("gemmaspec.") and name.split(".")[1] in ROOMS and file.name != "__main__.py"
        ]
        return
    for name in imports(file):
        parts = name.split(".")
        if parts[0] != "gemmaspec" or len(parts) < 2 or parts[1] not in ROOMS or parts[1] == room:
            continue
        below = ROOMS[parts[1]] < ROOMS[room] or (room, parts[1]) in ALLOWED_SIDEWAYS
        assert below, f"{room} imports {name}"


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_touches_no_process_network_or_clock(room: str) -> None:
    used = {name.split(".")[0] for file in (PACKAGE / room).rglob("*.py") for name in imports(file)}
    assert not used & WORLD


def test_the_launcher_imports_the_standard_library_alone() -> None:
    used = {name.split(".")[0] for name in imports(PACKAGE / "launcher" / "launch.py")}
    assert used <= sys.stdlib_module_names


def test_the_makers_of_tiny_models_import_nothing_of_gemmaspec_but_each_other() -> None:
    files = list((PACKAGE / "tiny").glob("*.py"))
    used = {name for file in files for name in imports(file) if name.startswith("gemmaspec")}
    assert len(files) > 4
    assert all(name.startswith("gemmaspec.tiny") for name in used)
