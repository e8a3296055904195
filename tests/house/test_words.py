"""The words that people read: no retired word in a message, a docstring or a comment's place, and verbs first."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.releases.facts import newest
from tests.support.sources import nodes_of, tree_of

ROOT = Path(__file__).parent.parent.parent

ROOMS = tuple(sorted(folder.parent.name for folder in (ROOT / "gemmaspec").glob("*/__init__.py")))
"""Every room; the modules outside of rooms and tools/ are held to it as well."""

RETIRED = {
    r"mend(s|ed|ing)?": "fix",
    r"holes?": "bug; the key `hole` of patch.yaml stays",
    r"stand-ins?": "fake",
    r"scratch": "workspace",
    r"ceilings?": "roofline, or limit",
    r"(image|audio|vision) (and \w+ )?towers?": "encoder",
    r"(is|are|was) not to be had": "cannot be fetched, is missing",
    r"(?<!there )(is|are) (?-i:none)(?! of)": "is missing, is invalid",
    r"(?<!there )is no (?!longer|answer)[a-z]+": "is not a …",
    r"(is|are) there already": "already exists",
    r"(not|nothing) there (any more|yet)": "missing",
    r"what it takes": "what it needs",
    r"(?<=[a-z] )(is|are) taken for": "counts as",
    r"needs? a hand": "has conflicts to resolve",
    r"beside": "next to, in addition to",
    r"a human": "a person",
    r"(was|were|is|are) taught": "trained",
    r"whole or not at all": "completely or not at all, atomically",
    r"with what it takes": "with its requirements",
    r"is (nowhere )?to be seen": "is not visible",
}
"""Words that this project no longer uses → the standard ones. Whole words, in any case."""

_RETIRED = re.compile("|".join(rf"\b(?:{word})\b" for word in RETIRED), re.IGNORECASE)
_TWO_WORDS = re.compile(r"[A-Za-z{}…]{2,}[,.:;]? +[A-Za-z{}…]{1,}")
_NO_VERB = re.compile(
    r"(The|A|An|Whether|How|Where|Every|All|Each|What|Which|Why|Those|None|Raises|Returns|Yields|Of|As|Its|One)\b"
)
_DESCRIBED = re.compile(r"(functools\.)?(cached_)?property$|rule\(")
"""Decorators of what is read as a value or, in lint, as a title: its docstring says what it is."""
_QUOTES = {
    "gemmaspec/run/ready/phases.py": "lines of vLLM's log",
    "tools/tiny/talk.py": "what weights that ship say",
}
"""Files with retired words in words of others."""
_NAMES_ITS_ERROR = {
    "gemmaspec/core/launcher/launch.py": "the report of a bug",
    "gemmaspec/core/launcher/attest.py": "the report of a bug in a process of the server",
    "gemmaspec/check/proof/run_probes.py": "what a probe saw",
    "tools/oracle_engine.py": "a broken oracle, for whoever repairs it",
}
"""Files that may show the name of an exception's class, and why."""


def _strings() -> object:
    spec = importlib.util.spec_from_file_location("strings", ROOT / "tools" / "strings.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STRINGS = _strings()


def files(room: str) -> list[Path]:
    """Return the Python files of a room; of the modules outside of every room for "root"; of tools/."""
    if room == "root":
        return sorted((ROOT / "gemmaspec").glob("*.py"))
    return sorted((ROOT / "tools" if room == "tools" else ROOT / "gemmaspec" / room).rglob("*.py"))


def read_by_people(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every message and docstring."""
    yield from STRINGS.texts(tree, docstrings=True)
    yield from (one for one in STRINGS.texts(tree, docstrings=False) if _TWO_WORDS.search(one[1]))


def retired(text: str) -> str | None:
    """Return the retired word in a text, without quotations of code."""
    found = _RETIRED.search(re.sub(r"`[^`]*`", "", text))
    return found[0] if found else None


@pytest.mark.parametrize("room", [*ROOMS, "root", "tools"])
def test_no_retired_word_reaches_a_person(room: str):
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word!r} in {text!r}"
        for file in files(room)
        if str(file.relative_to(ROOT)) not in _QUOTES
        for line, text in read_by_people(tree_of(file))
        if (word := retired(text))
    ]
    assert files(room)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", [*ROOMS, "root", "tools"])
def test_a_docstring_of_a_function_begins_with_a_verb(room: str):
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}: {text.splitlines()[0]}"
        for file in files(room)
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef)
        if not any(_DESCRIBED.match(ast.unparse(one)) for one in node.decorator_list)
        if _NO_VERB.match(text := ast.get_docstring(node) or "")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", [*ROOMS, "root", "tools"])
def test_no_message_names_the_class_of_an_exception(room: str):
    shown = {
        str(file.relative_to(ROOT))
        for file in files(room)
        for node in nodes_of(file)
        if isinstance(node, ast.FormattedValue)
        if ast.unparse(node.value) in ("type(error).__name__", "error!r")
    }
    assert shown <= _NAMES_ITS_ERROR.keys()


def _spans_of_all(text: str) -> list[str]:
    """Return the ranges of releases that end with the newest one: false on the day of the next."""
    minor = newest().rpartition(".")[0]
    return re.findall(rf"\b0\.\d+(?:\.\d+)?(?: ?[-–] ?| to ){re.escape(minor)}\b(?:\.\d+)?", text)


@pytest.mark.parametrize("top", ["gemmaspec", "patches", "profiles", "docs"])
def test_no_text_says_by_hand_which_release_is_the_newest(top: str):
    generated = {"patches.md", "proof.md", "oracle.md", "releases.md"}
    texts = [
        one for one in (ROOT / top).rglob("*") if one.suffix in (".py", ".yaml", ".md") and one.name not in generated
    ]
    found = [f"{one.relative_to(ROOT)}: {span}" for one in texts for span in _spans_of_all(one.read_text())]
    assert texts
    assert not found, "say `from 0.26.0`, or `every release`:\n" + "\n".join(found)
    assert _spans_of_all(f"0.19.0-{newest()}, 0.26 to {newest()}")
    assert not _spans_of_all(f"0.19.0-0.30.0, from 0.26.0 on, {newest()}")


@pytest.mark.parametrize("room", [*ROOMS, "root", "tools"])
def test_every_docstring_stands_under_what_it_describes(room: str):
    found = [
        f"{file.relative_to(ROOT)}:{statement.lineno}"
        for file in files(room)
        for node in nodes_of(file)
        if isinstance(body := getattr(node, "body", None), list)
        for before, statement in itertools.pairwise(body)
        if isinstance(statement, ast.Expr)
        if isinstance(statement.value, ast.Constant)
        if isinstance(statement.value.value, str)
        if not isinstance(before, ast.Assign | ast.AnnAssign)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("what would mend it", "mend"),
        ("https://x is not to be had: 404", "is not to be had"),
        ("a fake of the Hub, a stand-in", "stand-in"),
        ("the text is no diff", "is no diff"),
        ("there is no diff", None),
        ("the container is no longer running", None),
        ("amendment of a whole file", None),
        ("patch.yaml's key `hole`", None),
    ],
)
def test_words_are_found_whole(text: str, word: str | None):
    assert retired(text) == word
