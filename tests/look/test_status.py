"""`status`, `wait`, `up --detach`, `down --all`, `logs --previous` and Ctrl-C, by a fake engine."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.errors import EnvironmentMissing, StartFailed
from gemmaspec.look.monitors import prometheus
from gemmaspec.look.top_page import Top
from gemmaspec.run.engine.server import State
from gemmaspec.run.kept import stacks, verdicts
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.kept.stacks import warn_of_neighbours
from tests.support.fake_engine import FakeMachine
from tests.support.fake_server import FakeServer, fake_server
from tests.support.fixtures import PYTHON, own_profiles, up


@pytest.fixture
def other_api() -> Iterator[FakeServer]:
    """What answers on the port of the profile `other`; the fixture `fake_metrics` does on that of `mine`."""
    with fake_server() as server:
        yield server


@pytest.fixture
def machine(
    machine: FakeMachine,
    fake_metrics: FakeServer,
    other_api: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    profiles: Path,
) -> FakeMachine:
    own_profiles(profiles, monkeypatch, {"mine": fake_metrics.port, "other": other_api.port})
    return machine


def row(capsys: pytest.CaptureFixture[str], name: str = "mine") -> dict[str, Any]:
    capsys.readouterr()
    run(["status", "--json"])
    (found,) = [one for one in json.loads(capsys.readouterr().out)["stacks"] if one["name"] == name]
    assert isinstance(found, dict)
    return found


def test_a_server_that_was_asked_is_ready_since_its_start(
    machine: FakeMachine, fake_metrics: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    found = row(capsys)
    assert (found["state"], found["status"], found["next"]) == ("ready", "running", None)
    assert found["port"] == fake_metrics.port
    assert abs(found["since"] - time.time()) < 60
    assert run(["status", "mine"]) == 0


def test_a_start_in_progress_says_its_phase_and_who_does_it(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    with owned("mine", "up") as owner:
        up(name="other")
        stacks.save(stacks.rescue("mine"))
        owner.tell("loading target")
        found = row(capsys)
        assert run(["status", "mine"]) == 0
    assert found["state"] == "starting"
    assert found["why"].startswith("loading target, by gemmaspec up (pid ")
    assert found["next"] == "gemmaspec status mine --wait"


def test_a_server_that_starts_is_not_yet_called_not_attested(
    machine: FakeMachine, fake_metrics: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    none_yet = {"state": "unknown", "text": "NOT ATTESTED: no process has attested", "processes": []}
    machine.report = {"attested": none_yet}
    machine.seen = State(status="running", restarts=1)
    fake_metrics.health = 503
    found = row(capsys)
    assert (found["state"], "attested" in found["report"]) == ("starting", False)
    fake_metrics.health = 200
    assert row(capsys)["report"]["attested"] == none_yet


def test_a_server_that_lives_on_after_the_kernel_killed_one_of_its_processes_is_warned_of(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    starved = State(status="running", starved="memory ran out: the kernel has killed a process of its container")
    machine.seen = starved
    capsys.readouterr()
    run(["status", "mine"])
    assert f"  WARNING   {starved.starved}\n" in capsys.readouterr().out


def test_a_detached_start_says_its_phase_by_the_log_until_somebody_waits(
    machine: FakeMachine, fake_metrics: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up("--detach") == 0
    waits = f"process wait mine:{fake_metrics.port}"
    assert waits not in machine.calls
    assert "gemmaspec status mine --wait" in capsys.readouterr().err
    fake_metrics.health = 503
    machine.log = ["Starting to load model /models/tiny-target..."]
    found = row(capsys)
    assert (found["state"], found["why"]) == ("starting", "loading target")
    fake_metrics.health = 200
    assert row(capsys)["state"] == "starting", "it answers, but has not been probed"
    assert run(["status", "mine", "--wait"]) == 0
    assert machine.calls[-1] == waits
    assert row(capsys)["state"] == "ready"


def test_a_server_that_ended_says_how_and_since_when_and_what_to_look_at(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    machine.running.clear()
    machine.ended = State(status="exited", exit_code=137, ended=time.time() - 600)
    found = row(capsys)
    assert (found["state"], found["exit_code"], found["next"]) == ("exited", 137, "gemmaspec restart mine")
    assert "it was killed (SIGKILL): by somebody, or by the kernel" in found["cause"]
    assert run(["status", "mine"]) == 1
    printed = capsys.readouterr().out
    assert "mine is exited: exit code 137" in printed
    assert "10 min" in printed
    assert run(["status", "mine", "--wait"]) == 6


def test_a_container_that_somebody_removed_is_no_death_by_memory(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its log went with it, so nothing says how it ended."""
    up(engine="docker")
    machine.running.clear()
    found = row(capsys)
    assert (found["state"], found["next"]) == ("exited", "gemmaspec restart mine")
    assert found["cause"].startswith("its container is gone, and its log with it")


def test_the_cause_of_a_death_is_the_same_everywhere_and_leftovers_are_ended_first(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    machine.running.clear()
    machine.log = ["x [loggers.py:1] Avg generation throughput: 1", "torch.OutOfMemoryError: CUDA out of memory."]
    machine.ended = State(status="exited", detail="left processes behind: pid 7", ended=time.time())
    found = row(capsys)
    assert (found["why"], found["next"]) == (
        "left processes behind: pid 7", "gemmaspec down mine    # then: gemmaspec restart mine",
    )  # fmt: skip
    assert "CUDA out of memory" in found["cause"]
    assert "gpu_memory_utilization" in found["fix"]
    for command in ((), ("--wait",)):
        run(["status", "mine", *command])
        said = capsys.readouterr()
        assert found["cause"] in said.out + said.err, command
        assert " ".join(found["next"].split()) in " ".join((said.out + said.err).split()), command


def test_a_hang_that_watch_has_named_is_the_verdict_of_status_and_top(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    now = stacks.now()
    verdicts.keep_watch("mine", verdicts.Watching(at=now, active={"hangs": now}))
    found = row(capsys)
    assert (found["state"], found["next"]) == ("unknown", "gemmaspec restart mine")
    assert re.fullmatch(r"hangs since \d\d:\d\d:\d\d, as watch has found", found["why"])
    assert run(["status", "mine"]) == 4
    (view,) = Top(["mine"]).look().views
    assert view.hang == found["why"]
    for ended_or_older in (
        verdicts.Watching(at=now - 60, active={"hangs": now}),
        verdicts.Watching(at=now, active={"hangs": now - 3600}),
    ):
        verdicts.keep_watch("mine", ended_or_older)
        assert row(capsys)["state"] == "ready"


def test_a_start_that_was_interrupted_ends_soon_and_a_second_ctrl_c_kills(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    graces: list[float] = []
    machine.stopping = lambda server: graces.append(server.stop_grace_s)
    machine.fails["wait"] = KeyboardInterrupt()
    machine.fails["stop"] = KeyboardInterrupt()
    assert up() == 130
    assert graces == [5.0, 0]
    said = capsys.readouterr().err
    assert "stopping mine (up to 5 s; Ctrl-C again kills it)" in said
    assert "interrupted; mine is not running" in said
    found = row(capsys)
    assert (found["state"], found["why"], found["next"]) == (
        "stopped", "its start was interrupted", "gemmaspec restart mine",
    )  # fmt: skip
    assert run(["status", "mine", "--wait"]) == 6
    assert "its start was interrupted" in capsys.readouterr().err


def test_what_was_stopped_is_not_called_exited(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up()
    run(["down", "mine"])
    found = row(capsys)
    assert (found["state"], found["next"]) == ("stopped", "gemmaspec restart mine")


def test_a_start_that_failed_leads_to_its_log(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fails["wait"] = StartFailed("it died")
    machine.log = ["RuntimeError: the moon is full"]
    assert up() == 6
    found = row(capsys)
    assert (found["state"], found["why"], found["next"]) == (
        "exited", "its start failed", "gemmaspec logs --previous mine",
    )  # fmt: skip
    assert found["cause"] == "RuntimeError: the moon is full"
    assert run(["logs", "--previous", "mine"]) == 0
    assert capsys.readouterr().out == "RuntimeError: the moon is full\n"
    assert run(["status", "mine", "--wait"]) == 6


def test_what_nobody_can_tell_is_unknown_with_the_reason_and_exit_4(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["up", "mine", "--engine", "docker"])
    up(name="other")
    machine.docker_is_away = EnvironmentMissing("docker is not answering", hint="docker info")
    found = row(capsys)
    assert (found["state"], found["why"], found["next"]) == ("unknown", "docker is not answering", "docker info")
    assert run(["status"]) == 4
    assert run(["status", "mine", "--wait"]) == 4


def test_up_detach_wait_and_status_show_the_last_verdicts(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    verdicts.keep_watch("mine", verdicts.Watching(at=stacks.now(), active={"hangs": stacks.now()}))
    run(["down", "mine"])
    capsys.readouterr()
    detached = ["up", "mine", "--engine", "process", *PYTHON, "--detach"]
    for command in (detached, ["status", "mine", "--wait"], ["status", "mine"]):
        run(command)
        assert re.search(r"  watch     hangs since \d+ s ago, looked \d+ s ago", capsys.readouterr().out), command
        run([*command, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert list(found.get("stacks", [found])[0]["watch"]["active"]) == ["hangs"], command


def test_a_server_that_is_silent_after_it_was_ready_is_unknown(
    machine: FakeMachine, fake_metrics: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    fake_metrics.health = 503
    assert row(capsys)["why"] == "it runs, but /health does not answer"


def test_a_damaged_record_does_not_hide_the_others(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up()
    up(name="other")
    (stacks.stack_folder("mine") / stacks.RECORD).write_text("{")
    assert row(capsys)["state"] == "unknown"
    assert row(capsys, "other")["state"] == "ready"


def test_the_table_names_every_stack_with_engine_port_and_state(
    machine: FakeMachine,
    fake_metrics: FakeServer,
    other_api: FakeServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up()
    up(name="other")
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["status"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "PROFILE", "ENGINE", "PORT", "STATE", "SINCE", "DRAFTING"]
    assert first.split()[:5] == ["mine", "mine", "process", str(fake_metrics.port), "ready"]
    assert second.split()[:5] == ["other", "other", "process", str(other_api.port), "ready"]


def test_what_is_measured_is_told_of_its_neighbours(machine: FakeMachine) -> None:
    told: list[str] = []
    assert up() == 0
    warn_of_neighbours("mine", told.append)
    assert told == []
    warn_of_neighbours("another", told.append)
    assert told == [
        "warning: mine runs on this machine too, and may slow down what is measured",
        "    gemmaspec down mine",
    ]
    assert run(["down", "mine"]) == 0
    told.clear()
    warn_of_neighbours("another", told.append)
    assert told == []


def test_down_all_stops_everything_and_goes_past_what_it_cannot_stop(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    up(name="other")
    capsys.readouterr()
    machine.fails["stop"] = EnvironmentMissing("not this one")
    assert run(["down", "--all"]) == 4
    assert "not this one" in capsys.readouterr().err
    assert set(machine.running) == {"mine"}
    assert run(["down", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stacks"][0] == {"name": "mine", "was_running": True, "error": None}
    assert not machine.running


@pytest.mark.parametrize("arguments", [["down"], ["down", "mine", "--all"]])
def test_down_wants_a_name_or_all(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "name a server, or use --all" in capsys.readouterr().err


def test_restart_takes_options_on_top_of_those_of_the_start(machine: FakeMachine) -> None:
    up("--set", "serve.max_num_seqs=3")
    assert run(["restart", "mine", "--set", "serve.port=8603"]) == 0
    assert machine.calls[-1] == "process wait mine:8603"
    assert "serve.max_num_seqs=3" in stacks.find("mine").overrides


@pytest.mark.parametrize(
    ("moment", "said"),
    [("wait", "interrupted; mine is not running"), ("preflight", "interrupted; no server was started")],
)
def test_ctrl_c_says_whether_the_server_runs_on(
    machine: FakeMachine, moment: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails[moment] = KeyboardInterrupt()
    assert up() == 130
    assert said in capsys.readouterr().err


def test_ctrl_c_while_waiting_leaves_the_server_and_says_so(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up("--detach")
    machine.fails["wait"] = KeyboardInterrupt()
    assert run(["status", "mine", "--wait"]) == 130
    printed = capsys.readouterr().err
    assert "interrupted; mine keeps running" in printed
    assert "gemmaspec down mine" in printed


def test_an_earlier_log_that_was_not_kept_is_said(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up()
    assert run(["logs", "--previous", "mine"]) == 2
    assert "there is no log of an earlier start of mine" in capsys.readouterr().err
    assert run(["logs", "-f", "--previous", "mine"]) == 2


def test_a_server_that_runs_is_said_to_run_and_shows_no_phases_of_a_start(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up() == 0
    for again in (["status", "mine", "--wait"], ["up", "mine", "--engine", "process", *PYTHON]):
        capsys.readouterr()
        assert run(again) == 0
        said = capsys.readouterr().err
        assert "mine is already running; sending a request" in said
        assert not re.search(r"\d s  ", said), said


def test_a_restart_of_the_same_server_is_not_called_a_change(
    machine: FakeMachine, fake_metrics: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up() == 0
    capsys.readouterr()
    assert run(["restart", "mine"]) == 0
    assert f"mine runs unchanged (process, port {fake_metrics.port}); stopping it" in capsys.readouterr().err
    assert run(["restart", "mine", "--set", "serve.max_num_seqs=3"]) == 0
    assert "mine runs an earlier version" in capsys.readouterr().err


def test_prometheus_scrapes_what_nobody_stopped_or_what_is_named(
    machine: FakeMachine, fake_metrics: FakeServer, other_api: FakeServer
) -> None:
    for name in ("mine", "other"):
        assert up(name=name) == 0
    assert run(["down", "mine"]) == 0
    found = {name: prometheus(names) for name, names in (("all", ()), ("named", ("mine",)))}
    assert f"127.0.0.1:{other_api.port}" in found["all"]
    assert f"127.0.0.1:{fake_metrics.port}" not in found["all"]
    assert f"127.0.0.1:{fake_metrics.port}" in found["named"]


_LOWERED = (
    "Initializing a V1 LLM engine (v0.32.0) with config: 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>",
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention backend TRITON_FLASH_ATTN "
    "(support: AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE",
)


@pytest.fixture
def on_a_gpu(machine: FakeMachine, fake_metrics: FakeServer, profiles: Path) -> FakeMachine:
    """Yield a machine on which the profile `mine` has a GPU of which nothing is known."""
    text = f"extends: tiny-cpu\nname: mine\nmachine: nvidia\nserve: {{port: {fake_metrics.port}}}\n"
    (profiles / "mine.yaml").write_text(text)
    return machine


def test_a_server_that_drafts_without_graphs_is_degraded_everywhere(
    on_a_gpu: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_gpu.log = list(_LOWERED)
    assert up() == 5
    printed = capsys.readouterr().out
    assert "mine is degraded: it answers, and drafts without CUDA graphs" in printed
    assert "a server made 53 tokens/s with such a draft (MTP, k=4) and 86 without one" in printed
    assert "next      gemmaspec restart mine --set serve.attention_backend=TRITON_ATTN" in printed
    found = row(capsys)
    assert found["state"] == "degraded"
    modes = found["graphs"]["modes"]
    assert (modes["target"], modes["draft"], found["graphs"]["hurts"]) == ("PIECEWISE", "NONE", True)
    assert found["next"] == "gemmaspec restart mine --set serve.attention_backend=TRITON_ATTN"
    assert run(["status", "mine"]) == 5
    assert run(["status"]) == 5
    assert run(["status", "mine", "--wait"]) == 5


def test_on_memory_as_slow_as_a_spark_lost_graphs_are_a_warning_and_with_graphs_nothing_is_said(
    on_a_gpu: FakeMachine, fake_metrics: FakeServer, capsys: pytest.CaptureFixture[str], profiles: Path
) -> None:
    on_a_gpu.log = list(_LOWERED[:1])
    assert up("--set", "env.VLLM_USE_V2_MODEL_RUNNER=0") == 0
    assert row(capsys)["graphs"] is None
    text = f"extends: tiny-cpu\nname: mine\nmachine: dgx-spark\nserve: {{port: {fake_metrics.port}}}\n"
    (profiles / "mine.yaml").write_text(text)
    on_a_gpu.log = list(_LOWERED)
    assert up() == 0
    assert "WARNING   CUDA graphs: target PIECEWISE, draft NONE" in capsys.readouterr().out
    assert row(capsys)["state"] == "ready"
    assert run(["status", "mine"]) == 0


def test_a_server_without_a_gpu_has_no_graphs_to_lose(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.log = ["Initializing a V1 LLM engine (v0.32.0) with config: 'cudagraph_mode': <CUDAGraphMode.NONE: 0>"]
    assert up() == 0
    assert row(capsys)["graphs"] is None


def test_what_down_has_not_ended_yet_is_stopping_for_status_and_for_who_waits(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    up()
    stacks.save(dataclasses.replace(stacks.find("mine"), outcome="stopping"))
    machine.running.clear()
    machine.ended = State(status="exited", detail="left processes behind: pid 7")
    assert row(capsys)["state"] == "stopping"
    assert run(["status", "mine"]) == 1
    assert run(["status", "mine", "--wait"]) == 6
    assert "mine is being stopped" in capsys.readouterr().err
    machine.ended = State(status="exited")
    assert row(capsys)["state"] == "stopped"
    assert run(["status", "mine", "--wait"]) == 6
    assert "mine is not running: it was stopped" in capsys.readouterr().err
    assert run(["status"]) == 0, "of all servers, one that does not run is no failure"
