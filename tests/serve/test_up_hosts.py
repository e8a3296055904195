"""`up` with nodes and the commands after it, as transcripts of a fake engine; fleet.yaml and --hosts are real."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.cli.options import complete_hosts
from gemmaspec.core.errors import StartFailed
from gemmaspec.core.profile.load import load_profile
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.bench.settings import BenchRequest
from gemmaspec.measure.servers.bench_server import Servers
from gemmaspec.run.kept import stacks
from tests.support.fake_engine import FakeMachine

FLEET = """\
hosts:
  a: {docker: default, address: 10.0.0.1, interface: cx, hca: [roce0]}
  b: {docker: tcp://127.0.0.1:1, address: 10.0.0.2, interface: cy, hca: [roce1]}
  c: {docker: tcp://127.0.0.2:1, address: 10.0.0.3, interface: cz, hca: [roce2]}
"""


@pytest.fixture
def machine(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, profiles: Path) -> FakeMachine:
    (profiles / "pair.yaml").write_text(
        "extends: tiny-cpu\nname: pair\nnodes: 2\nserve: {port: 8603, bind: 0.0.0.0}\npass_env: [VLLM_API_KEY]\n"
    )
    (profiles / "fleet.yaml").write_text(FLEET)
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    monkeypatch.setenv("VLLM_API_KEY", "not-a-real-key")
    monkeypatch.setattr("gemmaspec.run.engine.choose.engine_of_nodes", lambda _: machine.engine("docker"))
    return machine


def up(*arguments: str) -> int:
    return run(["up", "pair", "--hosts", "a,b", *arguments])


def service(host: str) -> dict[str, object]:
    text = (stacks.stack_folder("pair") / f"compose.{host}.yaml").read_text()
    found: dict[str, object] = yaml.safe_load(text)["services"]["vllm"]
    return found


def test_the_order_of_hosts_is_the_rank_in_record_and_files(machine: FakeMachine) -> None:
    assert run(["up", "pair", "--hosts", "b,a"]) == 0
    assert machine.calls == ["docker preflight pair:8603", "docker start pair:8603", "docker wait pair:8603"]
    started = stacks.find("pair")
    assert [node.host for node in started.server.nodes] == ["b", "a"]
    assert started.options.hosts == ("b", "a")
    assert (started.server.copied, started.known_good) == (True, None)
    assert started.server.base_url == "http://127.0.0.1:8603", "by the address of rank 0's daemon"
    head, worker = service("b"), service("a")
    assert "--headless" in worker["command"]  # type: ignore[operator]
    assert "--headless" not in head["command"]  # type: ignore[operator]
    assert not (stacks.stack_folder("pair") / "compose.yaml").exists()


def test_a_second_up_joins_and_other_hosts_replace(machine: FakeMachine) -> None:
    up()
    machine.calls.clear()
    assert up() == 0
    assert machine.calls == ["docker wait pair:8603"]
    machine.calls.clear()
    assert run(["up", "pair", "--hosts", "a,c"]) == 0
    assert [call.split()[1] for call in machine.calls] == ["preflight", "stop", "start", "wait"]


def test_restart_keeps_the_hosts_and_rollback_refuses(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    run(["up", "pair", "--hosts", "b,a"])
    assert run(["restart", "pair"]) == 0
    assert stacks.find("pair").options.hosts == ("b", "a")
    assert run(["rollback", "pair"]) == 2
    said = capsys.readouterr().err
    assert "pair spans 2 machines, and rollback knows servers of one machine only" in said
    assert "try: gemmaspec up pair --hosts b,a" in said


def test_a_replacement_that_fails_names_the_command_that_starts_the_old_one(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    machine.fails["wait"] = StartFailed("no")
    assert up("--set", "serve.max_num_seqs=3") == 6
    said = capsys.readouterr().err
    assert "gemmaspec up pair --hosts a,b    # as it was" in said
    assert "gemmaspec rollback" not in said


def test_a_dry_run_names_the_ranks(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    assert up("--dry-run", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["hosts"] == ["a", "b"]
    assert machine.calls == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "pair"], "pair runs on 2 machines (nodes: 2), and"),
        (["up", "pair", "--hosts", "a,x"], "unknown host 'x'"),
        (["up", "pair", "--hosts", "a,,b"], "--hosts must be names of fleet.yaml"),
        (["up", "tiny-cpu", "--hosts", "a,b"], "--hosts is for a server on several machines"),
        (["up", "pair", "--hosts", "a,b", "--engine", "process"], "--engine process starts on this one alone"),
        (["up", "pair", "--hosts", "b,a", "--set", "serve.bind=127.0.0.1"], "but rank 0 runs on b, another machine"),
    ],
)
def test_what_cannot_start_on_these_hosts_is_said(
    arguments: list[str], said: str, machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err
    assert machine.calls == []


def test_a_mistake_in_fleet_yaml_is_named_with_its_line(
    machine: FakeMachine, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (profiles / "fleet.yaml").write_text(FLEET.replace("interface: cy", "interfaces: cy"))
    assert up() == 2
    assert "fleet.yaml:3: b: unknown key 'interfaces'; did you mean 'interface'?" in capsys.readouterr().err


def test_without_a_fleet_its_place_and_form_are_named(
    machine: FakeMachine, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (profiles / "fleet.yaml").unlink()
    assert up() == 2
    said = capsys.readouterr().err
    assert "there is no fleet.yaml" in said
    assert "NAME: {docker: " in said


def test_fleet_yaml_is_no_profile_and_its_hosts_complete(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "list", "--json"]) == 0
    assert '"name": "fleet"' not in capsys.readouterr().out
    assert complete_hosts("a,") == ["a,b", "a,c"]


def test_bench_starts_its_server_on_the_hosts_of_the_last_start(machine: FakeMachine) -> None:
    assert run(["up", "pair", "--hosts", "b,a"]) == 0
    assert run(["down", "pair"]) == 0
    servers = Servers(
        BenchRequest(profile="pair", out=Path(), any_text=True, timeout_s=5), load_profile("pair"), Mock()
    )
    (arm,) = servers.arms([Arm(method="draft_model", k=4)])
    servers._start(arm)
    assert stacks.find("pair").options.hosts == ("b", "a")
    assert servers.machine["gpu"] is None


def test_gc_names_the_hosts_whose_volumes_it_could_not_ask_for(
    machine: FakeMachine, profiles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "fleet.yaml").write_text(FLEET.replace("default", "tcp://127.0.0.3:1"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert run(["gc", "--volumes", "--json", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["garbage"] == []
    unasked = [line for line in said.err.splitlines() if line.endswith("volumes were not checked")]
    assert [line.partition(":")[0] for line in unasked] == ["docker is not answering", "a", "c"], "b is this daemon"
