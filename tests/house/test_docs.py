"""Every command line that README.md, docs/ and the help show is one that gemmaspec takes, and every YAML block is one that it reads.

What a page shows a command print is generated where it needs no server (`<!-- run N: … -->`, tools/reference.py); tests/house/test_reference.py
compares it.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from gemmaspec.check.lint.check import check
from gemmaspec.check.lint.rule import as_text
from gemmaspec.cli import help as help_
from gemmaspec.cli.app import app
from gemmaspec.core import data
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    data.LINT_CODES,
]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(gemmaspec [^`\n]+)`")
KINDS = ("", "console", "bash", "text")
BEFORE = re.compile(r"^\s*(?:[A-Z_]+=\S+ |uvx --from \S+ |\.venv/bin/|exec |srun )*")
"""What may stand before a command of gemmaspec."""
MOST_OF_A_GUIDE = 1_500
"""Words of one guide."""
SHIPPED = {name: load_profile(str(file)).profile for name, file in profile_names([data.PROFILES]).items()}
UsageError: Any = typer.BadParameter.__base__
"""click's, under whichever name typer carries it."""


class Shown(NamedTuple):
    """A command line of a page."""

    page: str
    line: str
    inline: bool = False
    """Whether it stands in running text, where a command may be named without its arguments."""


def shown() -> Iterator[Shown]:
    """Yield every command line of gemmaspec, from blocks and from running text."""
    for file in PAGES:
        text = file.read_text()
        found = [line for kind, block in blocks(text) if kind in KINDS for line in lines(kind, block)]
        for line in dict.fromkeys(found):
            yield Shown(str(file.relative_to(ROOT)), line)
        for line in dict.fromkeys(INLINE.findall(BLOCK.sub("", text))):
            if line not in found:
                yield Shown(str(file.relative_to(ROOT)), line, inline=True)
    for about in help_.ABOUT.values():
        for line in lines("text", "\n".join(f"gemmaspec {example}" for example in about.examples)):
            yield Shown("help", line)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each block."""
    for indent, kind, block in BLOCK.findall(text):
        yield kind, re.sub(f"^{indent}", "", block, flags=re.MULTILINE)


def lines(kind: str, block: str) -> Iterator[str]:
    """Yield the command lines of a block: those after `$ `, or without such lines every one; two of one line apart."""
    whole = block.replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in whole if line.startswith("$ ")]
    for line in typed if typed or kind == "console" else whole:
        for part in re.split(r"&& | > | \| ", line.partition(" #")[0]):
            command = BEFORE.sub("", part)
            if command.startswith("gemmaspec ") and not re.match(r"gemmaspec [A-Z\[]", command):
                yield command.strip()


def taken(line: str) -> list[str]:
    """Parse a command line as gemmaspec would; return its arguments. Raise UsageError for what it does not take."""
    words = [word for word in shlex.split(line)[1:] if word != "…"]
    command: Any = typer.main.get_command(app)
    while words and (inner := getattr(command, "commands", None)) and not words[0].startswith("-"):
        if words[0] not in inner:
            raise UsageError(f"no command {words[0]}")
        command, words = inner[words[0]], words[1:]
    context = command.context_class(command)
    return [word for word in command.make_parser(context).parse_args(args=words)[1] if isinstance(word, str)]


@pytest.mark.parametrize("one", list(shown()), ids=lambda one: f"{one.page}-{one.line}")
def test_a_command_of_a_page_is_one_that_gemmaspec_takes(one: Shown) -> None:
    for word in taken(one.line):
        if re.match(r"(spark2?|nvidia|tiny)-", word):
            assert word.removesuffix("-tuned") in SHIPPED


@pytest.mark.parametrize("line", ["gemmaspec lift x", "gemmaspec up x --no-such-option", "gemmaspec patch fly"])
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(UsageError):
        taken(line)


def profiles() -> Iterator[tuple[str, str]]:
    """Yield each whole profile that a page shows, with its page."""
    for file in PAGES:
        for kind, block in blocks(file.read_text()):
            if kind == "yaml" and re.search(r"^name: .*\n(.*\n)*(extends|target):", block, re.MULTILINE):
                yield str(file.relative_to(ROOT)), block


def test_a_profile_of_a_page_has_no_error(tmp_path: Path) -> None:
    found = list(profiles())
    assert {page for page, _ in found} >= {"docs/guides/profiles.md", "docs/guides/from-vllm-serve.md"}
    for page, text in found:
        name = re.search(r"^name: ([\w-]+)", text, re.MULTILINE)
        assert name
        file = tmp_path / f"{name[1]}.yaml"
        file.write_text(text)
        loaded = load_profile(str(file), folders=[data.PROFILES])
        found_in = check(loaded, patches=load_patches(), asked=vllm_of(loaded.profile))
        errors = [as_text(one) for one in found_in if one.severity == "error"]
        assert errors == [], page


CURL = re.compile(r"curl http://127\.0\.0\.1:(\d+)/v1/chat/completions .*?\"model\": \"([^\"]+)\"", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/guides/first-evening.md", "docs/guides/no-gpu.md"])
def test_a_curl_of_a_page_asks_a_shipped_profile(page: str) -> None:
    (port, model), *others = CURL.findall((ROOT / page).read_text())
    served = {(str(one.serve.port), one.serve.served_model_name or one.target.model) for one in SHIPPED.values()}
    assert others == []
    assert (port, model) in served


def test_a_guide_stays_short() -> None:
    words = {file.name: len(file.read_text().split()) for file in PAGES if file.parent.name == "guides"}
    assert {name: count for name, count in words.items() if count > MOST_OF_A_GUIDE} == {}


def test_a_page_has_its_title_in_the_menu() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    for title, page in entries(nav):
        head = re.search(r"^# (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        assert head
        assert head[1].replace("`", "") == title


def entries(nav: Any) -> Iterator[tuple[str, str]]:
    """Yield title and file of each entry of a navigation."""
    for item in nav:
        for title, inside in item.items():
            yield from [(title, inside)] if isinstance(inside, str) else entries(inside)
