"""The guard of unified memory ends a server that starts, and one that is watched, and is off by one key."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import partial

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.live.memory_guard import Memory
from gemmaspec.core.profile.load import load_profile
from gemmaspec.look.watch import look, watched
from gemmaspec.run.kept import stacks
from gemmaspec.run.machine.memory_guard import MemoryGuard, wants_guard
from tests.serve.test_up_faults import servers
from tests.support import fake_runtime
from tests.support.fake_runtime import Fake
from tests.support.real import free_port

SHORT = Memory(total=100_000_000_000, available=1_000_000_000)
ENOUGH = dataclasses.replace(SHORT, available=50_000_000_000)


@pytest.fixture
def guarded(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A profile whose memory is guarded, and that this process can start."""
    fake_runtime.make_models()
    fake.profile("near", free_port())
    with (fake.profiles / "near.yaml").open("a") as file:
        file.write("watch: {memory_guard: true}\n")
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    yield fake
    run(["down", "near"])


def test_it_is_on_where_memory_is_unified_and_off_by_one_key() -> None:
    assert wants_guard(load_profile("spark-31b-mtp").profile)
    assert not wants_guard(load_profile("spark-31b-mtp", overrides=("watch.memory_guard=false",)).profile)
    assert not wants_guard(load_profile("nvidia-31b-mtp").profile)
    assert wants_guard(load_profile("nvidia-31b-mtp", overrides=("watch.memory_guard=true",)).profile)


def test_a_start_that_takes_the_last_memory_is_ended(
    guarded: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_VLLM_SECONDS", "60")
    monkeypatch.setattr("gemmaspec.serve.starting.MemoryGuard", partial(MemoryGuard, read=lambda: SHORT))
    assert run(["up", "near", "--engine", "process"]) == 4
    said = capsys.readouterr().err
    assert "near was ended while" in said
    assert "1.0 of 100 GB of memory were left" in said
    assert "watch.memory_guard=false" in said
    assert servers() == []


def test_a_watched_server_is_ended_before_its_machine_freezes(
    guarded: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded.run("up", "near", "--engine", "process").code == 0
    (watch,) = watched(["near"])
    watch.guard = MemoryGuard(read=lambda: ENOUGH)
    assert [line.what for _ in range(3) for line in look(watch, power_w=None, restart=_never)] == []
    watch.guard = MemoryGuard(read=lambda: SHORT)
    lines = [line for _ in range(3) for line in look(watch, power_w=None, restart=_never)]
    assert [(line.what, line.fault) for line in lines] == [("begins", "gone")]
    assert "watch ended it before this machine freezes: 1.0 of 100 GB" in lines[0].reason
    assert servers() == []
    capsys.readouterr()
    run(["status", "near", "--json"])
    (seen,) = json.loads(capsys.readouterr().out)["stacks"]
    assert seen["state"] == "exited"
    assert "before this machine freezes" in seen["cause"]
    assert stacks.find("near").outcome == "ready", "so that a watch that may restart does"


def _never(*_: object, **__: object) -> None:
    raise AssertionError("it is only reported")
