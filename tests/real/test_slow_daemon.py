"""`status` and `logs` through a Docker daemon that takes seconds for each answer: the machine's own, behind a slow socket."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Iterator

import docker
import pytest

from gemmaspec.cli import status as cli
from gemmaspec.cli.app import run
from gemmaspec.core import waiting
from gemmaspec.core.files import state_dir
from gemmaspec.run.engine import compose, endpoint
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept import stacks
from tests.support.docker_support import stack, wait_for
from tests.support.slow_daemon import SlowDaemon, slow_daemon

pytestmark = [
    pytest.mark.real_docker,
    pytest.mark.usefixtures("collected"),
    # The docker SDK leaves the sockets of failed connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

FILES = 12
"""Patched files of the server; `status` once asked for each alone, with five requests."""
MOST_REQUESTS = 14


@pytest.fixture(scope="module")
def client(client: docker.DockerClient) -> docker.DockerClient:
    """The shared one, where the daemon has a socket that can be relayed."""
    if not endpoint.find().url.startswith("unix://"):
        pytest.skip("real docker: the daemon has no socket on this machine")
    return client


def report() -> str:
    """A launcher's report of one patch with many files, each of which is as it was."""
    sha256 = hashlib.sha256(b"x").hexdigest()
    files = [
        {"path": f"vllm/{n}.py", "state": "applies", "line": 1, "detail": "", "sha256_before": sha256, "sha256_after": sha256}
        for n in range(FILES)
    ]  # fmt: skip
    patch = {"patch": "one", "state": "applies", "variant": "0.32", "files": files}
    return json.dumps(
        {"schema": 1, "plan_sha256": "", "patches": [patch], "overlay": "/o", "vllm": {"path": "/v/vllm"}}
    )


@pytest.fixture
def server(client: docker.DockerClient) -> Iterator[Server]:
    """A container of a shell that has such a report and such files, started by gemmaspec as far as its record says."""
    name = f"slow-{uuid.uuid4().hex[:8]}"
    made = (
        f"n=0; while [ $n -lt {FILES} ]; do printf x > /v/vllm/$n.py; printf x > /o/vllm/$n.py; n=$((n+1)); done; "
        "cat /told/report.json > /run/gemmaspec/report.json; echo written; sleep 600"
    )
    folder = state_dir() / "stacks" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(report())
    volumes = [f"{folder}:/told:ro"]
    running = stack(folder, made, volumes=volumes, tmpfs=["/run/gemmaspec", "/v/vllm", "/o/vllm"])
    engine = DockerEngine()
    try:
        engine.start(running)
        wait_for(lambda: "written" in engine.logs(running))
        stacks.save(stacks.Started(engine="docker", server=running, profile="tiny-cpu", outcome="ready", since=1.0))
        yield running
    finally:
        compose.stop(running)
        engine.close()


@pytest.fixture
def slow(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowDaemon]:
    """The daemon that the test's commands ask; the server is stopped by the quick one."""
    with slow_daemon(tmp_path_factory.mktemp("s"), delay_s=0.5) as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.url)
        yield daemon


def test_status_asks_few_things_and_names_the_daemon_on_stderr_alone(
    server: Server, slow: SlowDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting.WAITS, "_gap_s", 1.0)
    run(["status", server.name, "--json"])
    printed = capsys.readouterr()
    (found,) = json.loads(printed.out)["stacks"]
    assert found["status"] == "running"
    assert [row["path"] for row in found["changed"]] == [str(server.folder / "plan.json")], "no file of the server"
    assert "waiting for the Docker daemon (" in printed.err
    assert len(slow.asked) <= MOST_REQUESTS, slow.asked


@pytest.mark.parametrize(("seconds", "state"), [(-1.0, "unknown"), (0.1, "running")])
def test_a_daemon_that_is_too_slow_is_not_asked_for_ever(
    server: Server,
    slow: SlowDaemon,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    state: str,
) -> None:
    monkeypatch.setattr(cli, "_PATIENCE_S", seconds)
    assert run(["status", server.name, "--json"]) == 4
    (found,) = json.loads(capsys.readouterr().out)["stacks"]
    assert found["status"] == state
    assert "the Docker daemon answers so slowly that not all was asked within" in json.dumps(found)
    if state == "unknown":
        assert found["next"] == "docker info"


def test_logs_name_the_daemon_and_not_a_server_that_is_silent(
    server: Server, slow: SlowDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting.WAITS, "_gap_s", 0.7)
    assert run(["logs", server.name]) == 0
    printed = capsys.readouterr()
    assert printed.out == "written\n"
    assert "waiting for the Docker daemon (" in printed.err


def test_files_are_read_by_one_command_and_told_apart(server: Server) -> None:
    engine = DockerEngine()
    try:
        many = [f"/v/vllm/{n}.py" for n in range(FILES)]
        contents = engine.read_all(server, [*many, "/missing", "/run/gemmaspec/report.json"])
        assert contents == {**dict.fromkeys(many, b"x"), "/run/gemmaspec/report.json": report().encode()}
        assert engine.read(server, "/missing") is None
        assert engine.read_all(dataclasses.replace(server, name="not-there"), many) == {}
    finally:
        engine.close()
