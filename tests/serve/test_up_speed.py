"""A start that fails with its patches for speed: again without them, said loudly."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.errors import StartFailed, TimedOut
from gemmaspec.run.kept import stacks
from gemmaspec.run.stack.folder import read_file
from gemmaspec.serve import speedless
from tests.support.fake_engine import FakeMachine
from tests.support.fixtures import own_profiles, up
from tests.support.speed_patches import write_speed_patch

FAST = ("--set", "patches.speed=[faster]")
APPLIED = "gemmaspec: patch faster: applies (0.30)"
TRACEBACK = [
    APPLIED,
    "(EngineCore_DP0 pid=1) Traceback (most recent call last):",
    '(EngineCore_DP0 pid=1)   File "/run/gemmaspec/overlay/vllm/m.py", line 3, in run',
    "(EngineCore_DP0 pid=1)     x()",
    "(EngineCore_DP0 pid=1) IndexError: tuple index out of range",
]
DIED = "mine stopped while warming up after 9 s (it exited, exit code 1)"


@pytest.fixture
def machine(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, profiles: Path, tmp_path: Path) -> FakeMachine:
    own_profiles(profiles, monkeypatch, {"mine": 9301})
    write_speed_patch(tmp_path / "patches")
    monkeypatch.setenv("GEMMASPEC_PATCHES", str(tmp_path / "patches"))
    machine.log = TRACEBACK
    return machine


def has_speed() -> bool:
    return "faster" in speedless.speed_files(read_file(stacks.stack_folder("mine") / "plan.json"))


def test_it_starts_again_without_them_and_says_so(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fails["wait"] = StartFailed(DIED)
    assert up(*FAST) == 0
    assert [call.split()[1] for call in machine.calls] == ["preflight", "start", "wait", "stop", "start", "wait"]
    said = capsys.readouterr().err
    assert f"WARNING: {DIED}: its log has a traceback through code of faster" in said
    assert "WARNING: starting mine again without faster" in said
    assert not has_speed()
    assert stacks.find("mine").outcome == "ready"


def test_status_says_so_a_restart_keeps_it_and_the_next_up_tries_them_again(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails["wait"] = StartFailed(DIED)
    assert up(*FAST) == 0
    assert run(["restart", "mine"]) == 0
    assert not has_speed()
    capsys.readouterr()
    run(["status", "mine"])
    assert "WARNING   it runs without its patches for speed (patches.speed=off)" in capsys.readouterr().out
    assert up(*FAST) == 0
    assert has_speed()


def test_where_both_starts_fail_nothing_runs(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fails["wait"] = [StartFailed(DIED), StartFailed(DIED)]
    assert up(*FAST) == 6
    assert stacks.find("mine").outcome == "failed"
    assert "mine" not in machine.running


@pytest.mark.parametrize(
    ("error", "log", "arguments"),
    [
        (StartFailed(DIED), TRACEBACK, ()),
        (StartFailed(DIED), TRACEBACK, (*FAST, "--no-speed-patches")),
        (StartFailed(DIED), TRACEBACK[1:], FAST),
        (TimedOut(DIED), TRACEBACK, FAST),
        (
            StartFailed(DIED),
            [APPLIED, "ValueError: No available memory for the cache blocks. Try increasing"],
            FAST,
        ),
    ],
    ids=["none planned", "turned off", "not applied", "too slow", "known other cause"],
)
def test_where_they_cannot_be_the_cause_the_start_just_fails(
    machine: FakeMachine, error: Exception, log: list[str], arguments: tuple[str, ...]
) -> None:
    machine.fails["wait"], machine.log = error, log
    assert up(*arguments) in (6, 7)
    assert [call.split()[1] for call in machine.calls].count("start") == 1


def test_an_error_of_a_kernel_may_come_from_anywhere(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.log = [APPLIED, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"]
    machine.fails["wait"] = StartFailed(DIED)
    assert up(*FAST) == 0
    assert f"WARNING: {DIED}: faster was in, and may be the cause" in capsys.readouterr().err
