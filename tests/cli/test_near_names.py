"""A wrong name gets the near one, and never a command that stops or changes something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.run.kept import stacks


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path))
    for name in ("fk", "spark-31b-e2b"):
        stacks.stack_folder(name).mkdir(parents=True)
        stacks.save(stacks.rescue(name))


@pytest.mark.parametrize("command", ["status", "logs", "watch", "smoke", "restart", "down", "rollback"])
def test_a_server_with_a_near_name_is_offered(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "spark-31b-e2"]) == 2
    said = capsys.readouterr().err
    assert "did you mean spark-31b-e2b?" in said
    assert "--all" not in said


@pytest.mark.parametrize(
    ("words", "says", "never"),
    [
        (("connect", "nosuch"), "unknown client 'nosuch'", "several profiles"),
        (("connect", "opencod"), "did you mean opencode?", "several profiles"),
        (("profile", "new", "a b"), "use lowercase letters, digits and hyphens: a-b", "new a b"),
        (("profile", "new", "A B", "--from", "spark-31b-mtp"), "hyphens: a-b", "new A B"),
        (("tune", "spark-31b-mtp", "--budget", "soon"), "try: --budget 45m", "Traceback"),
    ],
)
def test_a_wrong_word_is_named_first(
    words: Sequence[str], says: str, never: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert never not in said
