"""Every command line of README.md and docs/ runs, or says what is missing: each page's, in its order, on a machine with nothing.

It has no Docker, no network, no cluster, no GPU and no state; what would start something is a dry run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session

from gemmaspec.cli.app import run
from gemmaspec.run.index import wheels
from tests.house.test_docs import Shown, shown

NOBODY = "http://127.0.0.1:9"
EXAMPLES = {
    "PROFILE": "tiny-cpu",
    "NAME": "tiny-cpu",
    "ID": "draft-text-only",
    "PATCH": "draft-text-only",
    "RELEASE": "0.33.0",
    "CODE": "GS505",
    "NUMBER": "1",
    "NAMESPACE": "llm",
    "DIR": ".",
    "A": "before",
    "B": "after",
}
"""What stands for something in a line of a page → something."""
OF_COMMAND = {
    "inspect": {"ID": "google/gemma-4-E2B-it"},
    "connect": {"NAME": "openai"},
    "bench": {"PROFILE": "nvidia-31b-mtp", "PATCH": "gemma4-fused-norms"},
}
"""What it stands for in one command."""
DRY = ("up", "restart", "bench", "tune", "gc")
"""Commands that change something, and have a dry run."""
NOT_DRY = ("--instead-of", "--running", "--url", "--resume", "--dry-run")
"""Options that take none, of commands that here find no server to ask and none that they could start."""
STAYS = re.compile(r"gemmaspec (top --web|--install-completion)")
"""What goes on until it is stopped, or is typer's own."""
EXIT_MISSING = 4
"""The exit code of everything that is missing on a machine; what a resolver says of it depends on its caches."""
MISSING = re.compile(
    r"no profile was started|no (stack|server|replica|workspace|rebase) |nothing is running|unknown profile|is not answering"
    r"|missing (file|folder)|does not exist|is not in the cache|already exists|there is no |name a |is not on this machine"
    r"|cannot (read|reach|query|connect)|has no (known good|measurements|lock)|does not contain|is not a file|network was disabled|was not tuned yet"
)
"""Words that name what is missing."""
OF_THE_READER = re.compile(r"\b(mine|pair|newer|right-thing|my-fix)\b")
"""Names that the lines before may have made."""


def pages() -> Iterator[tuple[str, list[Shown]]]:
    """Yield each page with its command lines, in their order."""
    by_page: dict[str, list[Shown]] = {}
    for one in shown():
        by_page.setdefault(one.page, []).append(one)
    yield from by_page.items()


def words_of(one: Shown) -> list[str]:
    """Return the arguments of a line, with examples in place of what they stand for, and as a dry run."""
    line = re.sub(r"(?<=\s)\[([^\]]+)\]", r"\1", re.split(r" > | \| ", one.line)[0]).replace("…", "")
    command = line.split()[1]
    examples = EXAMPLES | OF_COMMAND.get(command, {})
    line = re.sub(r"(?<![\w-])[A-Z]+(?![\w-])", lambda found: examples.get(found[0], found[0]), line)
    words = shlex.split(line.replace("127.0.0.1:8000", "127.0.0.1:9"))[1:]
    if command in DRY and not set(words) & set(NOT_DRY):
        words.append("--dry-run")
    if command == "top" and "--once" not in words:
        words.append("--once")
    return words


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine of somebody who has just installed it, without anything else."""
    close_session()  # the Hub's client keeps the proxies that were set when it was made
    monkeypatch.chdir(tmp_path)
    folders = {"HOME": "", "GEMMASPEC_STATE": "state", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOBODY)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setitem(wheels.pip_settings(), "retries", "0")  # nobody will answer the second time either
    monkeypatch.setenv("DOCKER_HOST", NOBODY.replace("http", "tcp"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("DOCKER_CONTEXT", "GEMMASPEC_PROFILES", "GEMMASPEC_PATCHES"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    close_session()


def fault(one: Shown, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a line and return what was wrong: neither an answer, nor what is missing."""
    words = words_of(one)
    code = run(words)
    printed = capsys.readouterr()
    said = f"{printed.out}\n{printed.err}"
    if "Traceback" in said or (code in (1, 3) and words[0] not in ("fit", "compare", "render")):
        return f"{one.line}: exit code {code}: {said[-300:]}"
    if code in (0, EXIT_MISSING) or (code == 1 and words[0] == "fit"):
        return ""
    if one.inline and re.search(r"^error: gemmaspec [a-z ]+ needs ", said, re.MULTILINE):
        return ""  # it only names the command
    return "" if MISSING.search(said) else f"{one.line}: exit code {code} without what is missing: {said[-300:]}"


FINE: set[str] = set()
"""Lines of earlier pages that need not run again, because no line before them changes what they do."""


@pytest.mark.parametrize(("page", "commands"), list(pages()), ids=[page for page, _ in pages()])
@pytest.mark.usefixtures("bare")
def test_every_command_of_a_page_runs_or_says_what_is_missing(
    page: str, commands: list[Shown], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for one in commands:
        if STAYS.match(one.line) or one.line in FINE:
            continue
        if found := fault(one, capsys):
            wrong.append(found)
        elif not OF_THE_READER.search(one.line):
            FINE.add(one.line)
    assert wrong == [], page


def test_placeholders_become_examples_and_changes_dry_runs() -> None:
    assert words_of(Shown("", "gemmaspec up PROFILE")) == ["up", "tiny-cpu", "--dry-run"]
    assert words_of(Shown("", "gemmaspec patch prove [PATCH]…")) == ["patch", "prove", "draft-text-only"]
    assert words_of(Shown("", "gemmaspec bench x --url http://127.0.0.1:8000"))[-1] == "http://127.0.0.1:9"


def test_a_line_that_only_fails_is_found(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not list(bare.iterdir())
    assert "exit code 2" in fault(Shown("", "gemmaspec explain no-such-word-anywhere"), capsys)
    assert "exit code 2" in fault(Shown("", "gemmaspec fit"), capsys)
    assert fault(Shown("", "gemmaspec fit", inline=True), capsys) == ""
