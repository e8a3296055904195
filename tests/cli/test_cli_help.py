"""The help: what each command says of itself, at three widths, and what is answered to other tools' names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from gemmaspec.cli import help as help_
from gemmaspec.cli import options
from gemmaspec.cli.app import app, run

WIDTHS = (80, 100, 140)


def commands(path: str = "", command: Any = None) -> Iterator[tuple[str, Any]]:
    """Every command and group by its path without `gemmaspec`."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        whole = f"{path} {name}".strip()
        yield whole, inner
        yield from commands(whole, inner)


COMMANDS = dict(commands())


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def test_every_command_has_its_line_and_examples_and_no_line_is_left_over() -> None:
    assert set(help_.ABOUT) == set(COMMANDS)


def test_every_command_of_the_first_level_stands_in_one_section() -> None:
    named = [name for names in help_.SECTIONS.values() for name in names]
    assert sorted(named) == sorted(name for name in COMMANDS if " " not in name)


@pytest.mark.parametrize("path", COMMANDS)
def test_a_summary_has_at_most_45_characters_and_is_whole(path: str) -> None:
    text = help_.summary(path)
    assert 0 < len(text) <= 45
    assert not re.search(r"\.\.\.|…|\.$", text)
    assert text[0].isupper()


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_are_command_lines_that_the_parser_knows(path: str) -> None:
    for line in help_.ABOUT[path].examples:
        for part in line.replace("gemmaspec ", "").split(" && "):
            words = part.split(" > ")[0].split()
            assert words[0] in COMMANDS, line
            known = {name for word in COMMANDS[_command(words)].params for name in (*word.opts, *word.secondary_opts)}
            given = {word.split("=")[0] for word in words if word.startswith("-")}
            assert given <= known, line


def _command(words: list[str]) -> str:
    return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_the_help_keeps_to_the_width_with_plain_names_of_arguments(
    path: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    printed = shown(capsys, *path.split())
    too_long = [line for line in printed.splitlines() if len(line) > width and "gemmaspec " not in line]
    assert too_long == []
    assert not re.search(r"<[a-z]|\{|\[\[", printed)
    if path:
        assert "Examples:" in printed


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_help_names_sections_and_whole_lines(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    printed = shown(capsys)
    assert re.findall(r"^(\w.*):$", printed, re.MULTILINE)[1:] == list(help_.SECTIONS)
    assert re.search(r"^  status +Show what runs and since when$", printed, re.MULTILINE)


def test_arguments_are_written_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Usage: gemmaspec up [OPTIONS] [PROFILE]\n" in shown(capsys, "up")
    assert "Usage: gemmaspec status [OPTIONS] [NAME]\n" in shown(capsys, "status")
    assert "Usage: gemmaspec profile lint [OPTIONS] [PROFILE]...\n" in shown(capsys, "profile", "lint")
    assert "Usage: gemmaspec patch verify [OPTIONS] [PATCH]...\n" in shown(capsys, "patch", "verify")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stop", "gemmaspec down"),
        ("ps", "gemmaspec status"),
        ("ls", "gemmaspec profile list"),
        ("list", "gemmaspec profile list"),
        ("upp", "gemmaspec up"),
        ("frobnicate", "gemmaspec --help"),
    ],
)
def test_a_command_that_is_unknown_is_answered_with_the_one_that_is_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([typed]) == 2
    assert meant in capsys.readouterr().err


def test_what_is_meant_exists() -> None:
    for meant in help_.COMMANDS.values():
        for part in meant.split(", or "):
            words = part.removeprefix("gemmaspec ").split()
            assert (
                words[0] in COMMANDS
                or words[0] in ("--help", "--version", "--install-completion")
                or not part.startswith("gemmaspec")
            ), part


def test_a_command_of_a_group_is_answered_with_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "lst"]) == 2
    assert "Did you mean gemmaspec patch list?" in capsys.readouterr().err


def test_the_version_has_a_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-V"]) == 0
    assert capsys.readouterr().out.startswith("gemmaspec ")


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_options_of_our_own_measurements_are_not_in_the_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-tokens" in (text := shown(capsys, command))
    for option in ("--ignore-eos", "--accept-any-text", "--repeats", "--sample ", "--request-timeout"):
        assert option not in text


def test_each_text_of_options_json_belongs_to_an_option_or_argument() -> None:
    sources = "".join(file.read_text() for file in options.TEXTS.parent.glob("*.py"))
    uses = re.findall(r"(?:option|argument)\(([^()]*(?:\(\)[^()]*)?)", sources)
    used = set()
    for use in uses:
        name = re.search(r'"(--[a-z/-]+|\[?[A-Z]\S*)"', use)
        of = re.search(r'of="(\w+)"', use)
        used |= {f"{of[1] if of else ''} {name[1]}".strip()} if name else set()
    assert used == set(json.loads(options.TEXTS.read_text()))
