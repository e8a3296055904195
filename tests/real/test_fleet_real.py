"""A server on two machines: two real docker daemons in network namespaces of their own, the real launcher, a fake vLLM."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.data import MODELS
from gemmaspec.run.engine import volumes
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.fleet import FleetEngine
from gemmaspec.run.engine.server import Node
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Done
from tests.support.two_hosts import (
    IMAGE,
    PYTHON,
    Bed,
    Machine,
    NoTwoHosts,
    fake_layer,
    load_image,
    share_image,
    two_hosts,
)

pytestmark = [
    pytest.mark.real_docker,
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.xdist_group("two_hosts"),
]

PORT = 8425


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    try:
        with two_hosts() as made:
            load_image(made.one, fake_layer())
            share_image(made)
            yield made
    except NoTwoHosts as why:
        pytest.skip(f"two machines on this one: {why}")


class Driver:
    """A third machine, with gemmaspec and a fleet.yaml."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self.profiles = folder / "profiles"
        self.profiles.mkdir()
        (self.profiles / "fleet.yaml").write_text(bed.fleet_yaml())
        shutil.copytree(MODELS, folder / "state" / "tiny")
        self.profile()

    def profile(self, **env: str) -> None:
        """Write the profile `pair`."""
        (self.profiles / "pair.yaml").write_text(
            f"extends: tiny-cpu\nname: pair\nimage: {IMAGE}\nnodes: 2\npatches: {{required: []}}\n"
            f"serve: {{port: {PORT}, bind: 0.0.0.0}}\npass_env: [VLLM_API_KEY]\nenv: {json.dumps(env)}\n"
            f"container: {{python: {PYTHON}, stop_grace_seconds: 5}}\n"
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands; its own daemon is away."""
        hosts = f"{self.bed.one.reached_at},{self.bed.two.reached_at}"
        return {
            **os.environ,
            "GEMMASPEC_PROFILES": str(self.profiles),
            "GEMMASPEC_STATE": str(self.folder / "state"),
            "DOCKER_HOST": "unix:///nonexistent/docker.sock",
            "VLLM_API_KEY": "not-a-real-key",
            "NO_PROXY": hosts,
            "no_proxy": hosts,
        }

    def begin(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Begin `gemmaspec …`."""
        return subprocess.Popen(
            [sys.executable, "-m", "gemmaspec", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment | environment,
        )  # fmt: skip

    def run(self, *arguments: str, **environment: str) -> Done:
        """Run `gemmaspec …` to its end."""
        with self.begin(*arguments, **environment) as process:
            out, err = process.communicate(timeout=400)
        return Done(process.returncode, out, err)

    def status(self) -> dict[str, Any]:
        """What `status` says of the pair."""
        found: dict[str, Any] = json.loads(self.run("status", "pair", "--json").out)["stacks"][0]
        return found

    def running(self) -> list[list[str]]:
        """The containers that run on each machine."""
        return [host.running() for host in (self.bed.one, self.bed.two)]


@pytest.fixture
def driver(bed: Bed, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(bed, tmp_path)
    yield made
    for host in (bed.one, bed.two):
        host.kill_all()
    if (tmp_path / "state" / "stacks").exists():
        made.run("down", "pair")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_server_on_two_machines_starts_answers_and_stops_as_one(driver: Driver) -> None:
    up = driver.run("up", "pair", "--json")
    assert up.code == 0, up.err
    document = json.loads(up.out)
    assert document["hosts"] == ["one", "two"]
    assert document["answer"]["drafts"] > 0
    assert [len(names) for names in driver.running()] == [1, 1]

    found = driver.status()
    assert (found["state"], [node["same"] for node in found["nodes"]]) == ("ready", [True, True])
    assert found["nodes"][0]["plan_sha256"] == found["nodes"][1]["plan_sha256"]
    verified = json.loads(driver.run("patch", "verify", "--server", "pair", "--json").out)
    assert verified["ok"] is True
    logs = driver.run("logs", "pair").out.splitlines()
    assert "one | fake vllm" in logs
    assert "two | fake worker" in logs
    assert driver.run("rollback", "pair").code == 2
    restarted = driver.run("restart", "pair")
    assert restarted.code == 0, restarted.err

    assert driver.run("down", "pair").code == 0
    assert driver.running() == [[], []]
    assert driver.status()["state"] == "stopped"


def test_a_rank_that_fails_ends_the_start_and_its_own_log_is_the_cause(driver: Driver) -> None:
    driver.profile(FAKE_WORKER_EXIT="3", FAKE_WORKER_SAYS="the worker's own reason", FAKE_VLLM_SECONDS="60")
    up = driver.run("up", "pair")
    assert up.code == 6, up.err
    assert "pair on two" in up.err
    assert "the worker's own reason" in up.err
    assert "exit code 3" in up.err
    assert driver.running() == [[], []]
    kept = driver.run("logs", "--previous", "pair").out
    assert "two | the worker's own reason" in kept
    assert "one | " in kept


def test_a_rank_lost_later_stops_the_other_under_watch(driver: Driver) -> None:
    assert driver.run("up", "pair").code == 0
    driver.bed.one.kill_all()  # the head: its worker would wait for ever
    found = driver.status()
    assert found["state"] == "exited"
    assert "rank 0 on one has ended" in found["why"]
    watch = driver.begin("watch", "pair", "--interval", "1")
    log = driver.folder / "state" / "stacks" / "pair" / "watch.log"
    try:
        wait_for(lambda: log.is_file() and "the other ranks were stopped" in log.read_text(), seconds=240)
    finally:
        watch.terminate()
        watch.communicate(timeout=120)
    assert driver.running() == [[], []]
    assert "two | fake worker" in driver.run("logs", "--previous", "pair").out
    assert driver.status()["why"] == "a rank has ended, and all were stopped"


def test_another_image_under_the_same_name_starts_nothing(driver: Driver) -> None:
    load_image(driver.bed.two, fake_layer("another"))
    try:
        up = driver.run("up", "pair")
    finally:
        share_image(driver.bed)
    assert up.code == 4, up.err
    assert f"the image {IMAGE} is not the same on all hosts" in up.err
    assert driver.running() == [[], []]


def test_a_plan_changed_on_its_way_starts_no_vllm_on_that_host(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "VLLM_API_KEY", "GEMMASPEC_STATE"):
        monkeypatch.setenv(name, driver.environment[name])
    assert driver.run("up", "pair").code == 0
    assert driver.run("down", "pair").code == 0
    server = server_of(driver)
    engine = FleetEngine(server.nodes)
    members = engine.members(server)
    try:
        for member in members:
            member.engine.create(member.server)
        changed = json.loads((server.folder / "plan.json").read_text()) | {"profile": "changed"}
        put_file(driver.bed.two, "plan.json", json.dumps(changed))
        for member in members:
            member.engine.start_created(member.server)
        wait_for(lambda: _exit_code(engine.states(server)["two"]) in (2, 5, 6))
        assert "fake worker" not in "".join(engine.logs(server))
    finally:
        engine.stop(server)
        engine.close()


def _exit_code(state: Any) -> int | None:
    return getattr(state, "exit_code", None)


def server_of(driver: Driver) -> Any:
    """Return the server of the pair as its last start recorded it."""
    from gemmaspec.core import records
    from gemmaspec.run.kept.stacks import Started

    started = records.read(Started, driver.folder / "state" / "stacks" / "pair" / "record.json")
    assert started is not None
    return started.server


def put_file(host: Machine, name: str, text: str) -> None:
    """Write a file into the stack's volume of the container that was created there."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    client = host.client()
    client.containers.list(all=True)[0].put_archive("/gemmaspec", archive.getvalue())
    client.close()


def test_a_host_that_does_not_answer_is_named_and_nothing_starts(driver: Driver) -> None:
    fleet = driver.bed.fleet_yaml().replace(driver.bed.two.url, "tcp://10.77.7.2:1")
    (driver.profiles / "fleet.yaml").write_text(fleet)
    up = driver.run("up", "pair")
    assert up.code == 4, up.err
    assert "two: docker is not answering" in up.err
    assert driver.running() == [[], []]


def test_a_host_that_goes_away_in_the_middle_of_up_is_named_and_the_other_is_stopped(driver: Driver) -> None:
    driver.profile(FAKE_VLLM_SECONDS="300")
    up = driver.begin("up", "pair")
    try:
        wait_for(lambda: [len(names) for names in driver.running()] == [1, 1], seconds=240)
        driver.bed.reachable(driver.bed.two, from_here=False)
        _, err = up.communicate(timeout=290)
    finally:
        driver.bed.reachable(driver.bed.two, from_here=True)
        up.kill()
        up.communicate()
    assert up.returncode == 4, err
    assert "two: " in err
    assert "what runs there is unknown" in err
    assert "gemmaspec down pair" in err
    assert driver.bed.one.running() == []
    assert driver.run("down", "pair").code == 0
    assert driver.running() == [[], []]


def test_gc_finds_and_removes_the_volumes_of_both_hosts(driver: Driver) -> None:
    stack = f"gone-{os.getpid()}"
    name = f"gemmaspec-{stack}_stack"
    own = uuid.uuid4().hex  # another state folder's volumes are not listed
    (driver.folder / "state").mkdir(exist_ok=True)
    (driver.folder / "state" / "state-id").write_text(own)
    for host in (driver.bed.one, driver.bed.two):
        with contextlib.closing(host.client()) as client:
            labels = {"com.docker.compose.project": name.removesuffix("_stack"), volumes.STATE: own}
            client.volumes.create(name, labels=labels)
    offered = driver.run("gc", "--volumes", "--json", "--dry-run")
    assert offered.code == 0, offered.err
    assert "volumes were not checked" in offered.err  # this machine's own daemon is away
    found = [row for row in json.loads(offered.out)["garbage"] if row["name"] == name]
    assert [row["host"] for row in found] == ["one", "two"]

    (driver.profiles / "fleet.yaml").write_text(
        driver.bed.fleet_yaml().replace(driver.bed.two.url, "tcp://10.77.7.2:1")
    )
    freed = driver.run("gc", "--volumes", "--yes")
    assert f"{name} on one" in freed.out
    assert "two: docker is not answering" in freed.err
    left = []
    for host in (driver.bed.one, driver.bed.two):
        with contextlib.closing(host.client()) as client:
            left.append([one.name for one in client.volumes.list() if one.name == name])
    assert left == [[], [name]]


def test_one_daemon_under_two_names_is_refused(driver: Driver) -> None:
    fleet = driver.bed.fleet_yaml().replace(driver.bed.two.url, driver.bed.one.socket)
    (driver.profiles / "fleet.yaml").write_text(fleet)
    up = driver.run("up", "pair")
    assert up.code == 4, up.err
    assert "one and two are one docker daemon" in up.err


def test_a_daemon_says_what_must_agree_with_the_others(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "10.77.6.2,10.77.7.2")
    monkeypatch.setenv("no_proxy", "10.77.6.2,10.77.7.2")
    engine = DockerEngine(Node(host="two", docker=driver.bed.two.url))
    assert engine.image_facts("two", "gemmaspec/nothing:1") is None
    found = engine.image_facts("two", IMAGE)
    assert found
    assert found.id.startswith("sha256:")
    assert abs(engine.facts("two").ahead_s) < 60, "one clock; how long the question takes is in it"
    engine.close()
