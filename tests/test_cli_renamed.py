"""Options that had another name: the old one works, says so, and is offered nowhere."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from gemmaspec.cli.app import app, run
from gemmaspec.cli.renamed import RENAMED, with_new_names

NAMES = [(command, old, new) for command, names in RENAMED.items() for old, new in names.items()]


def options_of(command: str) -> set[str]:
    """The names of a command's options."""
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    return {name for one in found.params for name in [*one.opts, *one.secondary_opts]}


@pytest.mark.parametrize(("command", "old", "new"), NAMES)
def test_the_new_name_exists_and_the_old_one_means_nothing_else(command: str, old: str, new: str) -> None:
    assert new in options_of(command)
    assert old not in options_of(command)


def test_an_old_name_works_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lint", "tiny-cpu", "--for=0.32.0"]) == 0
    old = capsys.readouterr()
    assert "note: --for of gemmaspec profile lint is called --release now" in old.err
    assert run(["profile", "lint", "tiny-cpu", "--release", "0.32.0"]) == 0
    new = capsys.readouterr()
    assert new.out == old.out
    assert "note:" not in new.err


def test_only_options_are_renamed_and_nothing_after_two_dashes() -> None:
    assert with_new_names("tune", ["a", "--resume", "--", "--rounds"]) == ["a", "--continue", "--", "--rounds"]
    assert with_new_names("bench", ["--resume", "out"]) == ["--resume", "out"]
