"""`up B --instead-of A`: two profiles on one GPU, and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.errors import EnvironmentMissing, StartFailed
from gemmaspec.run.kept import stacks
from gemmaspec.serve import up
from tests.support.fake_engine import FakeMachine
from tests.support.fixtures import PYTHON, own_profiles

PROCESS = ("--engine", "process", *PYTHON)


@pytest.fixture
def machine(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, profiles: Path) -> FakeMachine:
    own_profiles(profiles, monkeypatch, {"one": 23601, "two": 23601})
    assert run(["up", "one", *PROCESS]) == 0
    machine.calls.clear()
    return machine


def test_it_prepares_stops_and_starts_on_the_same_port(machine: FakeMachine) -> None:
    assert run(["up", "two", "--instead-of", "one", *PROCESS]) == 0
    assert machine.calls == [
        "process preflight two:23601", "process stop one:23601", "process preflight two:23601",
        "process start two:23601", "process wait two:23601",
    ]  # fmt: skip
    assert list(machine.running) == ["two"]


def test_a_start_that_fails_brings_the_first_one_back(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fails["wait"] = StartFailed("it died")
    assert run(["up", "two", "--instead-of", "one", *PROCESS]) == 6
    assert list(machine.running) == ["one"]
    assert "it died" in (told := capsys.readouterr().err)
    assert "one runs again as before." in told
    assert stacks.find("one").outcome == "ready"


def test_what_is_missing_stops_nothing(machine: FakeMachine) -> None:
    machine.fails["preflight"] = EnvironmentMissing("no image")
    assert run(["up", "two", "--instead-of", "one", *PROCESS]) == 4
    assert machine.calls == ["process preflight two:23601"]
    assert list(machine.running) == ["one"]


def test_ctrl_c_brings_the_first_one_back(machine: FakeMachine) -> None:
    machine.fails["wait"] = KeyboardInterrupt()
    assert run(["up", "two", "--instead-of", "one", *PROCESS]) == 130
    assert list(machine.running) == ["one"]


def test_ctrl_c_after_the_answer_leaves_the_second_one_alone(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "_settle", pressed)
    assert run(["up", "two", "--instead-of", "one", "--set", "serve.port=23602", *PROCESS]) == 130
    assert list(machine.running) == ["two"]
    assert "two runs, and one stays stopped." in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [(("one", "one"), "instead of itself"), (("two", "one"), "no stack named")])
def test_what_makes_no_sense_is_refused(
    words: tuple[str, str], said: str, machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", words[1], "--instead-of", words[0], *PROCESS]) == 2
    assert said in capsys.readouterr().err
    assert machine.calls == []


def test_a_dry_run_says_what_is_stopped_and_taken_over_and_changes_nothing(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["up", "two", "--instead-of", "one", "--dry-run", *PROCESS]
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert "stop:   one (process, port 23601), once what two needs is in place\n" in printed
    assert "takes:  port 23601 of one\n" in printed
    assert "back:   one runs again if two does not answer\n" in printed
    assert "run:" in printed
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["instead_of"] == "one (process, port 23601)"
    assert run([*command, "--set", "serve.port=23602"]) == 0
    assert "takes:" not in capsys.readouterr().out
    assert run(["up", "one", "--instead-of", "one", "--dry-run", *PROCESS]) == 2
    assert run(["up", "two", "--instead-of", "three", "--dry-run", *PROCESS]) == 2
    assert not [call for call in machine.calls if call.split()[1] in ("start", "stop", "wait", "preflight")]
    assert list(machine.running) == ["one"]
    assert stacks.read_stack("two") is None


def test_it_waits_for_one_server(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "two", "--instead-of", "one", "--detach", *PROCESS]) == 2
    assert "not with --detach or replicas" in capsys.readouterr().err
    assert machine.calls == []
