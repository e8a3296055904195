"""Write the table of what vLLM raises: every `raise` and `assert` with a text, by file, condition and releases.

    .venv/bin/python tools/raises.py [RELEASE …]     # default: every known release

`gemmaspec explain --log` names with it the place of an error that no row of failures.yaml knows. Models of other
families and programs that no server runs are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gemmaspec.check.proof.source import source_of
from gemmaspec.core.releases.facts import releases
from gemmaspec.run.ready.raises import HOLE, TABLE

_LEFT_OUT: Final = ("vllm/benchmarks/", "vllm/third_party/", "vllm/vllm_flash_attn/")
_MODELS: Final = "vllm/model_executor/models/"
_OUR_MODELS: Final = ("gemma", "siglip", "interfaces", "registry", "utils", "adapters", "llama_eagle3", "qwen3_dflash")
_LEAST: Final = 12
"""Characters that a text needs, values left out, to say which one it is."""
_MOST: Final = 100
"""Characters of a condition to keep."""


class Place(NamedTuple):
    """One statement that raises."""

    exception: str
    text: str
    file: str
    function: str
    condition: str


def main(arguments: list[str]) -> int:
    """Read the releases and write the table."""
    wanted = arguments or list(releases())
    found: dict[tuple[str, str, str], Place] = {}
    seen: dict[tuple[str, str, str], list[str]] = {}
    for release in wanted:
        places = list(in_release(source_of(release)))
        sys.stderr.write(f"{release}: {len(places)} places\n")
        for place in places:
            key = (place.exception, place.text, place.file)
            found[key] = place  # the newest release's function and condition
            if release not in seen.setdefault(key, []):
                seen[key].append(release)
    lines = ["\t".join((*place, spans(seen[key], wanted))) for key, place in sorted(found.items())]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stderr.write(f"{len(lines)} rows in {TABLE}\n")
    return 0


def spans(there: list[str], known: list[str]) -> str:
    """Return releases as spans of those that were read: 0.19.0-0.25.1, 0.27.0."""
    parts: list[list[str]] = []
    for release in known:
        if release not in there:
            continue
        before = known[known.index(release) - 1] if known.index(release) else None
        if parts and parts[-1][-1] == before:
            parts[-1].append(release)
        else:
            parts.append([release])
    return ", ".join(part[0] if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def in_release(folder: Path) -> Iterator[Place]:
    """Yield what a release raises."""
    for file in sorted((folder / "vllm").rglob("*.py")):
        name = file.relative_to(folder).as_posix()
        if name.startswith(_LEFT_OUT) or _of_another_model(name):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except SyntaxError:
            continue
        yield from _Reader(name.removeprefix("vllm/")).places(tree)


def _of_another_model(name: str) -> bool:
    return name.startswith(_MODELS) and not name.removeprefix(_MODELS).startswith(_OUR_MODELS)


class _Reader:
    """Reads one file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def places(self, tree: ast.AST) -> Iterator[Place]:
        yield from self._inside(tree, function="", condition="")

    def _inside(self, node: ast.AST, *, function: str, condition: str) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            inner, where = function, condition
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner, where = child.name, ""
            if isinstance(child, ast.If):
                yield from self._branches(child, function=inner)
                continue
            if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and child.exc.args:
                yield from self._place(_name(child.exc.func), child.exc.args[0], function=inner, condition=where)
            if isinstance(child, ast.Assert) and child.msg is not None:
                unmet = f"not ({_one_line(child.test)})"
                yield from self._place("AssertionError", child.msg, function=inner, condition=unmet)
            yield from self._inside(child, function=inner, condition=where)

    def _branches(self, node: ast.If, *, function: str) -> Iterator[Place]:
        test = _one_line(node.test)
        for body, condition in ((node.body, test), (node.orelse, f"not ({test})")):
            block = ast.Module(body=body, type_ignores=[])
            yield from self._inside(block, function=function, condition=condition)

    def _place(self, exception: str, said: ast.expr, *, function: str, condition: str) -> Iterator[Place]:
        text = " ".join(_text(said).split())
        if len(text.replace(HOLE, "")) < _LEAST or " " not in text:
            return
        if len(condition) > _MOST:
            condition = f"{condition[: _MOST - 1]}…"
        yield Place(exception, text, self._file, function, condition)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "Exception")


def _one_line(node: ast.expr) -> str:
    return " ".join(ast.unparse(node).split())


def _text(node: ast.expr) -> str:
    """Return a text as it is written, with {} where values go in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else HOLE
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _percent(_text(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _braces(_text(node.func.value))
    return HOLE


def _percent(text: str) -> str:
    return re.sub(r"%[-\d.]*[sdrfx]", HOLE, text)


def _braces(text: str) -> str:
    return re.sub(r"\{[^{}]*\}", HOLE, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
