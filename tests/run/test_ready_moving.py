"""Whether an engine still moves, as `status` finds out without a container's health check."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.look import status as use_case
from gemmaspec.run.engine.container import state_of
from gemmaspec.run.engine.server import EngineName, State
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.ready.moving import hangs
from gemmaspec.run.stack.paths import PROBE_FILE
from tests.support.fake_engine import FakeMachine
from tests.support.fake_server import FakeServer


def asked(fake_metrics: FakeServer) -> int:
    return sum(path == "/v1/chat/completions" for path, _, _ in fake_metrics.requests)


def test_an_idle_server_is_asked_for_one_token_a_minute(fake_metrics: FakeServer, tmp_path: Path) -> None:
    fake_metrics.drafts_per_answer = 0
    file = tmp_path / "health.json"
    assert [hangs(fake_metrics.server(), file) for _ in range(3)] == [False] * 3
    assert asked(fake_metrics) == 1
    seen = json.loads(file.read_text())
    file.write_text(json.dumps({**seen, "at": seen["at"] - 61}))
    assert not hangs(fake_metrics.server(), file)
    assert asked(fake_metrics) == 2


def test_one_that_gives_no_token_hangs_and_one_that_refuses_does_not(fake_metrics: FakeServer, tmp_path: Path) -> None:
    fake_metrics.status = 400
    assert not hangs(fake_metrics.server(), tmp_path / "s")
    fake_metrics.status, fake_metrics.seconds_per_byte = 200, 0.5
    began = time.monotonic()
    assert hangs(fake_metrics.server(), tmp_path / "s", deadline_s=0.1)
    assert time.monotonic() - began < 50
    assert not (tmp_path / "s").exists()


def test_slow_counters_are_no_hang_and_silence_is_one(fake_metrics: FakeServer, tmp_path: Path) -> None:
    fake_metrics.slow = "/metrics"
    assert not hangs(fake_metrics.server(), tmp_path / "s", deadline_s=0.2)
    fake_metrics.slow = "/"
    assert hangs(fake_metrics.server(), tmp_path / "s", deadline_s=0.2)


def probed(fake_metrics: FakeServer, folder: Path, deadline_s: float) -> subprocess.CompletedProcess[str]:
    """What a container's health check runs, as it runs it."""
    server = fake_metrics.server()
    words = ["answers", f"--port={server.port}", f"--model={server.model}", f"--state={folder / 'health.json'}"]
    file = data.LAUNCHER.parent / PROBE_FILE
    command = [sys.executable, "-I", str(file), *words, f"--deadline={deadline_s}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def test_a_container_whose_counters_dribble_is_healthy_while_it_gives_tokens(
    fake_metrics: FakeServer, tmp_path: Path
) -> None:
    fake_metrics.slow = "/metrics"
    done = probed(fake_metrics, tmp_path, 4.0)
    assert (done.returncode, done.stdout) == (0, "")
    assert asked(fake_metrics) == 1
    fake_metrics.slow = "nothing"
    assert (probed(fake_metrics, tmp_path, 4.0).returncode, asked(fake_metrics)) == (0, 1)


def test_a_container_that_dribbles_its_answer_is_not_healthy_when_its_time_is_over(
    fake_metrics: FakeServer, tmp_path: Path
) -> None:
    fake_metrics.slow = "/"
    began = time.monotonic()
    done = probed(fake_metrics, tmp_path, 2.0)
    assert done.returncode == 1
    assert done.stdout == "gemmaspec: /v1/chat/completions was not there within 1.4 s\n"
    assert time.monotonic() - began < 20


def runs(machine: FakeMachine, started: Started) -> None:
    """Record a server that its engine sees run."""
    stacks.stack_folder(started.server.name).mkdir(parents=True)
    stacks.save(started)
    machine.running[started.server.name] = started.engine, started.server


def test_status_calls_slow_counters_slow_counters(machine: FakeMachine, fake_metrics: FakeServer) -> None:
    runs(machine, Started(engine="process", server=fake_metrics.server(), profile="tiny-cpu", outcome="ready"))
    fake_metrics.slow, fake_metrics.slow_s = "/metrics", 30.0
    (found,) = use_case.status("fake")
    assert found.word == "ready"
    assert "/metrics does not answer within" in found.problem


def test_one_that_moves_is_not_asked(fake_metrics: FakeServer, tmp_path: Path) -> None:
    for tokens in range(4):
        fake_metrics.metrics = f"vllm:generation_tokens_total {tokens}.0\n".encode()
        assert not hangs(fake_metrics.server(), tmp_path / "s")
    assert asked(fake_metrics) == 1


@pytest.mark.parametrize("engine", ["process", "docker"])
def test_status_says_that_a_green_server_gives_no_token(
    engine: EngineName, machine: FakeMachine, fake_metrics: FakeServer
) -> None:
    runs(machine, Started(engine=engine, server=fake_metrics.server(), profile="tiny-cpu", outcome="ready"))
    machine.seen = State(status="running", unhealthy=engine == "docker")
    fake_metrics.seconds_per_byte = 0.5
    (found,) = use_case.status("fake")
    assert found.word == "unknown"
    assert found.why.startswith("it runs and /health answers, but it")
    assert found.next == "gemmaspec restart fake"


@pytest.mark.parametrize(("health", "unhealthy"), [("unhealthy", True), ("healthy", False), ("starting", False)])
def test_docker_says_whether_a_container_is_unhealthy(health: str, unhealthy: bool) -> None:
    seen = {"Status": "running", "ExitCode": 0, "Health": {"Status": health}}
    assert state_of({"Id": "0" * 64, "State": seen}).unhealthy is unhealthy
