"""Who may import whom: the arrows of docs/explanations/design.md, enforced."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path

import pytest

from tests.support.sources import nodes_of, tree_of

PACKAGE = Path(__file__).parent.parent.parent / "gemmaspec"

WINGS = ("core", "run", "check", "serve", "measure", "look", "cli")
"""From the lowest to the highest: an import goes down or stays in its wing."""
PURE = (
    *("core/releases", "core/checkpoint", "core/profile", "core/resolved", "core/patching"),
    *("core/fleet", "core/rolling", "core/lock", "core/live", "run/stack", "run/cluster"),
    *("check/lint", "check/fit", "check/inspect", "check/predict", "check/doctor"),
    *("measure/bench", "measure/tune", "measure/smoke"),
)
"""Rooms that only decide."""
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


@functools.cache
def imports(file: Path) -> tuple[str, ...]:
    found: list[str] = []
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return tuple(found)


FILES = sorted(file for file in PACKAGE.rglob("*.py") if "_data" not in file.parts)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_from_its_wing_and_those_below(file: Path) -> None:
    wing = file.relative_to(PACKAGE).parts[0]
    if file.parent == PACKAGE:
        assert wing in ("__init__.py", "__main__.py"), "every other module stands in a wing"
        return
    used = {name.split(".")[1] for name in imports(file) if name.startswith("gemmaspec.")}
    assert {above for above in used if WINGS.index(above) > WINGS.index(wing)} == set()


@pytest.mark.parametrize("wing", WINGS)
def test_the_rooms_of_a_wing_do_not_import_each_other_in_a_circle(wing: str) -> None:
    graph: dict[str, set[str]] = {}
    for file in (file for file in FILES if (PACKAGE / wing) in file.parents and file.parent != PACKAGE / wing):
        room = file.relative_to(PACKAGE).parts[1]
        names = (name.split(".") for name in imports(file) if name.startswith(f"gemmaspec.{wing}."))
        used = {name[2] for name in names if (PACKAGE / wing / name[2]).is_dir()}
        graph.setdefault(room, set()).update(used - {room})
    assert len(tuple(graphlib.TopologicalSorter(graph).static_order())) == len(graph)


def test_what_a_start_decides_touches_no_process_network_or_clock() -> None:
    assert not {name.split(".")[0] for name in imports(PACKAGE / "serve" / "decide.py")} & WORLD


def test_the_design_lists_every_wing_and_room_in_this_order() -> None:
    text = (PACKAGE.parent / "docs" / "explanations" / "design.md").read_text()
    block = text.partition("gemmaspec/\n")[2].partition("```")[0]
    listed = re.findall(r"^ {2}([a-z]+)/", block, re.MULTILINE)
    assert listed == list(reversed(WINGS))
    rooms = {file.relative_to(PACKAGE).parts[1] for file in FILES if len(file.relative_to(PACKAGE).parts) > 2}
    assert set(re.findall(r"^ {4}([a-z_]+)/", block, re.MULTILINE)) == {room for room in rooms if "." not in room} - {
        "text"
    }


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_touches_no_process_network_or_clock(room: str) -> None:
    used = {name.split(".")[0] for file in (PACKAGE / room).rglob("*.py") for name in imports(file)}
    assert not used & WORLD


@pytest.mark.parametrize("file", ["launch.py", "probe.py", "rank_facts.py", "look.py"])
def test_what_runs_beside_vllm_imports_the_standard_library_alone(file: str) -> None:
    used = {name.split(".")[0] for name in imports(PACKAGE / "core" / "launcher" / file)}
    assert used <= sys.stdlib_module_names


@functools.cache
def exported() -> frozenset[str]:
    """What the launcher's package imports for the host."""
    tree = tree_of(PACKAGE / "core" / "launcher" / "__init__.py")
    lines = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return frozenset(alias.asname or alias.name for node in lines for alias in node.names)


def test_the_host_reaches_the_launcher_only_by_its_exports() -> None:
    for file in (*FILES, *(PACKAGE.parent / "tools").glob("*.py")):
        if file.parent.name == "launcher":
            continue
        taken = [node for node in nodes_of(file) if isinstance(node, ast.ImportFrom)]
        assert "gemmaspec.core.launcher.launch" not in set(imports(file)), file
        names = {alias.name for node in taken if node.module == "gemmaspec.core.launcher" for alias in node.names}
        names |= {
            node.attr
            for node in nodes_of(file)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "launcher"
        }
        assert names <= exported(), f"{file}: {names - exported()}"


def test_the_launcher_exports_what_the_host_uses_and_no_more() -> None:
    text = "\n".join(file.read_text() for file in FILES if file.parent.name != "launcher")
    assert [name for name in sorted(exported()) if not re.search(rf"\b{name}\b", text)] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone and imports inside functions count too."""
    names = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in FILES}
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        taken = [node for node in nodes_of(file) if isinstance(node, ast.ImportFrom)]
        graph[name] = {f"{node.module}.{alias.name}" for node in taken for alias in node.names} & set(names)
        graph[name] |= {node.module or "" for node in taken} & set(names)
    assert tuple(graphlib.TopologicalSorter(graph).static_order())


MOST_LINES = 50
MOST_PARAMETERS = 12


def test_a_function_is_short_and_takes_few_parameters() -> None:
    """Signatures and docstrings do not count as lines; the parameters of a command are its options."""
    for file in FILES:
        for node in nodes_of(file):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) and node.body[1:] else node.body
            assert (node.end_lineno or 0) - body[0].lineno < MOST_LINES, f"{file}: {node.name}"
            if file.parent != PACKAGE / "cli":
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                assert len(parameters) <= MOST_PARAMETERS, f"{file}: {node.name}"


def test_an_error_stays_as_it_was_raised() -> None:
    edited = [
        file.name
        for file in FILES
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if node.attr in ("message", "hint", "exit_code") and ast.unparse(node.value) != "self"
    ]
    assert edited == []


def test_no_template_but_our_own_is_rendered_here() -> None:
    """A model's or a profile's chat template is text to copy: Jinja runs what it says, and a sandbox has holes."""
    users = {str(file.relative_to(PACKAGE)) for file in FILES if any("jinja" in name for name in imports(file))}
    assert users == {"run/stack/compose.py", "look/connect.py"}
    assert "FileSystemLoader(data.COMPOSE)" in (PACKAGE / "run" / "stack" / "compose.py").read_text()
    connect = (PACKAGE / "look" / "connect.py").read_text()
    assert connect.count("_filled(CLIENTS[") == connect.count("_filled(") - 1
    assert 'yaml.safe_load((TEMPLATES / "clients.yaml")' in connect
