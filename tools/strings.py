"""List every string that a person can read, as file:line and text, for proofreading.

    python tools/strings.py [FOLDER or FILE …]      # gemmaspec/ by default
    python tools/strings.py --docstrings gemmaspec/cli

A string is listed if it contains two or more words and is neither a docstring nor an attribute's description.
Placeholders of an f-string are shown as {…}. Regular expressions, generated code and keys of formats are listed too,
because a reader skips them more reliably than a rule.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TWO_WORDS = re.compile(r"[A-Za-z{}…]{2,}[,.:;]? +[A-Za-z{}…]{1,}")


def texts(tree: ast.Module, *, docstrings: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string; with `docstrings`, only of docstrings and descriptions."""
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in inside or (id(node) in described) != docstrings:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values),
            )


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "gemmaspec"])
    parser.add_argument("--docstrings", action="store_true", help="list docstrings instead")
    options = parser.parse_args()
    for path in options.paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found = sorted(texts(ast.parse(file.read_text(encoding="utf-8")), docstrings=options.docstrings))
            for line, text in found:
                if TWO_WORDS.search(text):
                    print(f"{file}:{line}: {text!r}")


if __name__ == "__main__":
    main()
