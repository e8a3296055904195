"""The order in which `up`, `restart`, `rollback` and `down` do things, as transcripts of a fake engine."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.data import MODELS
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed, TimedOut
from gemmaspec.core.files import state_dir
from gemmaspec.run.engine.server import Server, State
from gemmaspec.run.kept import claims, stacks
from gemmaspec.run.kept.stack_lock import Terminated
from gemmaspec.serve.decide import UpRequest, decide
from gemmaspec.serve.observe import load_request, observe
from tests.support.fake_engine import FakeMachine
from tests.support.fake_runtime import Fake
from tests.support.fixtures import PYTHON, own_profiles, up
from tools.tiny.talk import TALK

OTHER = ("--set", "serve.max_num_seqs=3")


@pytest.fixture
def machine(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, profiles: Path) -> FakeMachine:
    own_profiles(profiles, monkeypatch, {"mine": 8601, "other": 8601})
    return machine


def known_good(name: str) -> str:
    """Make what runs known good, which a fake engine cannot: there is no vLLM to take versions from."""
    from dataclasses import replace

    from gemmaspec.core.lock.document import Lock, LockedModel, Versions
    from gemmaspec.run.stack.build import STACK_FILES
    from gemmaspec.run.stack.folder import read_file
    from gemmaspec.serve import knowngood

    started = stacks.find(name)
    facts = Lock(
        profile=name, engine="process", plan=f"sha256:{'a' * 64}", target=LockedModel(model="some/target"),
        versions=Versions(vllm="unknown", torch="unknown", transformers="unknown"),
    )  # fmt: skip
    started = replace(started, server=replace(started.server, python=state_dir() / "gone"))
    folder = stacks.stack_folder(name)
    files = {file: read_file(folder / file) for file in STACK_FILES if (folder / file).is_file()}
    key = knowngood._store(started, files, facts)
    stacks.save(replace(started, known_good=key))
    return key


def test_up_starts_a_stack(machine: FakeMachine) -> None:
    assert up() == 0
    assert machine.calls == [
        "process preflight mine:8601",
        "process start mine:8601",
        "process wait mine:8601",
    ]
    assert stacks.find("mine").outcome == "ready"
    assert claims.claimed_by(8601) == "mine"


def test_up_prints_what_to_ask_and_that_a_toy_is_one(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    assert up() == 0
    printed = capsys.readouterr().out
    (line,) = [one for one in printed.splitlines() if one.startswith("  ask       curl ")]
    words = shlex.split(line)[1:]
    assert words[:2] == ["curl", "http://127.0.0.1:8601/v1/chat/completions"]
    body = json.loads(words[-1])
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    asked = [question for questions, _ in TALK for question in questions]
    assert body["messages"][0]["content"] in asked  # the tiny pair knows it
    assert "  toy       a tiny model that knows a few dozen sentences" in printed
    (state_dir() / "own").mkdir()
    (state_dir() / "own" / "config.json").write_text("{}")
    assert up("--set", f"target.model={state_dir()}/own") == 0
    assert "  toy  " not in capsys.readouterr().out


def disk_is_full(_: Path, copy: Path) -> None:
    copy.mkdir()
    (copy / "config.json").touch()
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "chat_template.jinja"])
def test_a_tiny_model_that_is_not_the_shipped_one_is_copied_again(
    machine: FakeMachine, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = state_dir() / "tiny" / "tiny-target"
    assert up("--dry-run") == 0
    assert "state:tiny/" not in capsys.readouterr().out
    (target / file).write_text("an older one")
    (target / "left").touch()
    assert up("--dry-run") == 0
    assert "copy:   target state:tiny/tiny-target" in capsys.readouterr().out
    assert up() == 0
    assert {each.name: each.read_bytes() for each in target.iterdir()} == {
        each.name: each.read_bytes() for each in (MODELS / "tiny-target").iterdir()
    }


def test_a_first_start_copies_what_its_profile_names_and_nothing_half(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(state_dir() / "tiny")
    with monkeypatch.context() as full:
        full.setattr("gemmaspec.run.kept.models.shutil.copytree", disk_is_full)
        assert up() == 4
    assert "cannot be copied to" in (said := capsys.readouterr().err)
    assert "No space left on device" in said
    assert machine.calls == ["process preflight mine:8601"]
    assert list((state_dir() / "tiny").iterdir()) == []
    assert up() == 0
    assert {each.name for each in (state_dir() / "tiny").iterdir()} == {"tiny-target", "tiny-draft"}


def test_up_joins_a_stack_that_runs_as_it_would_be_rendered(machine: FakeMachine) -> None:
    up()
    machine.calls.clear()
    assert up() == 0
    assert machine.calls == ["process wait mine:8601"]


def test_up_replaces_a_running_stack(machine: FakeMachine) -> None:
    up()
    machine.calls.clear()
    assert up(*OTHER) == 0
    assert machine.calls == [
        "process preflight mine:8601",
        "process stop mine:8601",
        "process start mine:8601",
        "process wait mine:8601",
    ]


def test_up_checks_the_other_engine_before_it_stops_this_one(machine: FakeMachine) -> None:
    up()
    machine.calls.clear()
    assert up(engine="docker") == 0
    assert machine.calls == [
        "docker preflight mine:8601",
        "process stop mine:8601",
        "docker start mine:8601",
        "docker wait mine:8601",
    ]


def test_a_replacement_that_cannot_be_started_leaves_what_runs(machine: FakeMachine) -> None:
    up()
    machine.calls.clear()
    machine.fails["preflight"] = EnvironmentMissing("port 8602 is taken")
    assert up("--set", "serve.port=8602") == 4
    assert machine.calls == ["process preflight mine:8602"]
    assert stacks.find("mine").server.port == 8601
    assert (claims.claimed_by(8601), claims.claimed_by(8602)) == ("mine", None)


def test_a_missing_model_leaves_what_runs(machine: FakeMachine, tmp_path: Path) -> None:
    up()
    machine.calls.clear()
    assert up("--set", f"target.model={tmp_path}/nowhere") == 4
    assert machine.calls == []
    assert machine.running["mine"]


def test_what_cannot_be_stopped_keeps_its_files_and_its_record(machine: FakeMachine) -> None:
    up()
    before, plan = stacks.find("mine"), (stacks.stack_folder("mine") / "plan.json").read_bytes()
    machine.calls.clear()
    machine.fails["stop"] = GemmaspecError("could not kill pid 7")
    assert up(*OTHER) == 1
    assert machine.calls == ["process preflight mine:8601", "process stop mine:8601"]
    assert stacks.find("mine") == before
    assert (stacks.stack_folder("mine") / "plan.json").read_bytes() == plan


def test_a_failed_start_is_stopped_again_where_docker_was_just_starting_it(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.fails |= {"wait": StartFailed("it died"), "stop": GemmaspecError("the container is restarting")}
    assert up() == 6
    assert machine.calls[-2:] == ["process stop mine:8601"] * 2
    assert machine.running == {}
    assert "restarting" not in capsys.readouterr().err
    assert stacks.find("mine").outcome == "failed"


def test_a_failed_start_that_cannot_be_stopped_is_told(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopping(server: Server) -> None:
        raise GemmaspecError(f"docker could not stop {server.name}", hint="docker ps")

    machine.stopping = stopping
    machine.fails["wait"] = StartFailed("it died")
    assert up() == 6
    err = capsys.readouterr().err
    assert "it died\ndocker could not stop mine" in err
    assert "docker ps" in err
    assert machine.running["mine"]
    assert stacks.find("mine").outcome != "failed", "it may run on, and `status` looks"


def test_a_refused_start_stops_nothing(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.fails["start"] = StartFailed("mine is already running (pid 7)")
    assert up() == 6
    assert machine.calls == ["process preflight mine:8601", "process start mine:8601"]
    assert "already running (pid 7)" in capsys.readouterr().err
    assert claims.claimed_by(8601) is None


def test_a_start_that_fails_is_stopped_and_its_log_kept_to_its_owner(machine: FakeMachine) -> None:
    machine.fails["wait"] = StartFailed("it exited")
    assert up() == 6
    assert machine.calls == [
        "process preflight mine:8601",
        "process start mine:8601",
        "process wait mine:8601",
        "process stop mine:8601",
    ]
    log = stacks.stack_folder("mine") / "failed.log"
    assert log.read_text() == "a line of the log\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert stacks.find("mine").outcome == "failed"


def test_ctrl_c_stops_what_was_started(machine: FakeMachine) -> None:
    machine.fails["wait"] = KeyboardInterrupt()
    assert up() == 130
    assert machine.calls[-1] == "process stop mine:8601"
    assert machine.running == {}


def test_a_failed_replacement_says_what_runs_now(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    up()
    known_good("mine")
    machine.calls.clear()
    machine.fails["wait"] = StartFailed("it exited")
    assert up(*OTHER, "--no-rollback-on-failure") == 6
    assert machine.calls[-2:] == ["process wait mine:8601", "process stop mine:8601"]
    err = capsys.readouterr().err
    assert "mine is not running: its earlier server was stopped for this start." in err
    assert "gemmaspec rollback mine" in err
    machine.calls.clear()
    assert run(["rollback", "mine"]) == 0
    assert machine.calls == ["process preflight mine:8601", "process start mine:8601", "process wait mine:8601"]


@pytest.mark.parametrize("goes_back", [True, False])
def test_a_stop_that_fails_after_the_server_has_ended_does_not_leave_nothing(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, goes_back: bool
) -> None:
    up()
    known_good("mine")
    machine.fails["stop"] = EnvironmentMissing("the kernel still ends it")
    machine.stopping = lambda server: machine.running.pop(server.name, None)
    machine.calls.clear()
    assert up(*OTHER, *(() if goes_back else ("--no-rollback-on-failure",))) == 4
    err = capsys.readouterr().err
    if goes_back:
        assert machine.calls[-2:] == ["process start mine:8601", "process wait mine:8601"]
        assert "mine runs again as before" in err
    else:
        first = next(line for line in err.splitlines() if line.startswith("error"))
        assert "mine is not running: its earlier server was stopped for this start." in first


def test_a_failed_replacement_goes_back_to_what_ran(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    up()
    key = known_good("mine")
    machine.calls.clear()
    machine.fails["wait"] = StartFailed("it exited")
    assert up(*OTHER, "--set", "serve.port=8602") == 6
    assert machine.calls == [
        "process preflight mine:8602",
        "process stop mine:8601",
        "process start mine:8602",
        "process wait mine:8602",
        "process stop mine:8602",
        "process preflight mine:8601",
        "process start mine:8601",
        "process wait mine:8601",
    ]
    assert "mine runs again as before" in capsys.readouterr().err
    started = stacks.find("mine")
    assert (started.outcome, started.known_good, started.server.port) == ("ready", key, 8601)
    assert (claims.claimed_by(8601), claims.claimed_by(8602)) == ("mine", None)


def test_a_short_timeout_is_not_that_of_the_way_back(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    up()
    known_good("mine")
    machine.waited.clear()
    machine.fails["wait"] = TimedOut("not ready in 3 seconds")
    assert up(*OTHER, "--timeout", "3") == 7
    assert machine.waited == [3.0, 1800.0]
    assert machine.running["mine"]


def test_ctrl_c_goes_back_and_down_does_not(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    up()
    known_good("mine")
    for error, runs in ((KeyboardInterrupt(), ["mine"]), (Terminated(), [])):
        machine.fails["wait"] = error
        assert up(*OTHER) == 130
        assert list(machine.running) == runs


def test_an_interrupt_while_a_failed_start_is_stopped_is_not_lost(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupts = [Terminated(), KeyboardInterrupt()]

    def stopping(server: Server) -> None:
        if "3" in server.command and server.stop_grace_s:
            raise interrupts.pop()

    up()
    known_good("mine")
    machine.stopping = stopping
    for runs in (["mine"], []):  # Ctrl-C goes back, and SIGTERM does not
        machine.fails["wait"] = StartFailed("it exited")
        assert up(*OTHER) == 130
        assert list(machine.running) == runs
        assert "it exited" in capsys.readouterr().err


def test_bench_starts_no_further_arm_after_an_interrupt_while_a_failed_one_is_stopped(
    machine: FakeMachine, tmp_path: Path
) -> None:
    machine.fails |= {"wait": StartFailed("it exited"), "stop": Terminated()}
    assert run(["bench", "mine", "--engine", "process", *PYTHON, "--out", str(tmp_path / "out")]) == 130
    assert machine.calls.count("process start mine:8601") == 1


def test_restart_checks_before_it_stops(machine: FakeMachine) -> None:
    up(*OTHER)
    machine.calls.clear()
    assert run(["restart", "mine"]) == 0
    assert machine.calls == [
        "process preflight mine:8601",
        "process stop mine:8601",
        "process start mine:8601",
        "process wait mine:8601",
    ]
    assert "3" in stacks.find("mine").server.command


def test_rollback_replaces_what_runs(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    up()
    key = known_good("mine")
    up(*OTHER)
    machine.calls.clear()
    assert run(["rollback", "mine"]) == 0
    assert machine.calls == [
        "process preflight mine:8601",
        "process stop mine:8601",
        "process start mine:8601",
        "process wait mine:8601",
    ]
    assert stacks.find("mine").known_good == key


def test_down_stops_and_releases_the_port(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up()
    machine.calls.clear()
    assert run(["down", "mine"]) == 0
    assert machine.calls == ["process stop mine:8601"]
    assert claims.claimed_by(8601) is None
    assert stacks.find("mine").outcome == "stopped"
    assert run(["down", "mine"]) == 0
    assert "mine was not running" in capsys.readouterr().err


def test_down_says_that_only_the_watch_was_left(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    assert up("--set", "watch.container=true", engine="docker") == 0
    machine.seen = State(status="exited", exit_code=1)
    assert run(["down", "mine"]) == 0
    told = capsys.readouterr().err
    assert "the server of mine was not running, but its watch was" in told
    assert "mine is stopped" in told


def test_a_port_belongs_to_one_stack(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up()
    machine.calls.clear()
    assert up(name="other") == 4
    assert machine.calls == []
    err = capsys.readouterr().err
    assert "port 8601 belongs to the stack mine, which runs there" in err
    assert "gemmaspec down mine" in err
    run(["down", "mine"])
    assert up(name="other") == 0


def test_a_claim_that_was_left_behind_does_not_count(machine: FakeMachine) -> None:
    up()
    machine.running.clear()  # it ended by itself
    assert up(name="other") == 0
    assert claims.claimed_by(8601) == "other"
    (state_dir() / "ports" / "8601.json").write_text("{")
    run(["down", "other"])
    assert up() == 0


def test_the_options_of_a_failed_start_are_not_those_it_was_started_with(machine: FakeMachine) -> None:
    up()
    machine.fails["wait"] = StartFailed("it exited")
    assert up("--set", "serve.port=8602") == 6
    assert run(["restart", "mine"]) == 0
    assert stacks.find("mine").server.port == 8601


def test_what_runs_stays_on_its_engine(machine: FakeMachine) -> None:
    up()
    machine.calls.clear()
    assert run(["up", "mine", *PYTHON]) == 0
    assert machine.calls == ["process wait mine:8601"], "docker answers, but it runs as a process"
    run(["down", "mine"])
    machine.calls.clear()
    assert run(["up", "mine", *PYTHON]) == 0
    assert machine.calls[-1] == "docker wait mine:8601", "stopped, it is chosen anew"


def test_a_server_that_may_run_is_not_started_again(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up(engine="docker")
    machine.docker_is_away = EnvironmentMissing("docker is not answering", hint="sudo systemctl start docker")
    machine.calls.clear()
    assert run(["up", "mine", *PYTHON]) == 4
    assert "cannot tell whether mine runs (docker): docker is not answering" in capsys.readouterr().err
    assert machine.calls == []
    assert up() == 0, "naming the other engine says that it is gone"


def test_a_dry_run_prints_what_up_then_does(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    for engine in ("process", "docker"):
        assert up("--dry-run", "--json", engine=engine) == 0
        plan: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert plan["command"] == shlex.join(machine.engine(engine).start_command(_server(engine)))  # type: ignore[arg-type]
        assert machine.calls == []
    assert "--speculative-config" in plan["command"] or engine == "docker"


def _server(engine: str) -> Any:
    request = UpRequest(profile="mine", overrides=(PYTHON[1],), engine=engine)  # type: ignore[arg-type]
    observed, _ = observe(request, load_request(request), lambda _: None)
    return observed.server


def test_nothing_that_decides_asks_the_disk(machine: FakeMachine) -> None:
    up()
    request = UpRequest(profile="mine", overrides=(PYTHON[1], "serve.port=8602"), engine="process")
    observed, _ = observe(request, load_request(request), lambda _: None)
    asked: list[str] = []
    listening = True

    def hear(event: str, _: tuple[Any, ...]) -> None:
        if listening and event.split(".")[0] in ("open", "os", "socket", "subprocess", "glob", "shutil"):
            asked.append(event)

    sys.addaudithook(hear)
    start = decide(request, observed)
    listening = False
    assert asked == []
    assert start.replaces
    assert start.server.port == 8602
    assert not start.port_is_free


def test_what_is_not_known_is_not_called_absent(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    up(engine="docker")
    machine.docker_is_away = EnvironmentMissing("docker is not answering", hint="sudo systemctl start docker")
    capsys.readouterr()
    assert run(["status"]) == 4
    told = capsys.readouterr()
    assert "unknown" in told.out
    assert "docker is not answering" in told.out
    assert run(["status", "mine", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["stacks"][0]["status"] == "unknown"
    machine.docker_is_away = None
    run(["down", "mine"])
    machine.docker_is_away = EnvironmentMissing("docker is not answering")
    capsys.readouterr()
    assert run(["status", "mine"]) == 1, "gemmaspec stopped it itself"
    assert "mine is stopped" in capsys.readouterr().out


def test_lock_pins_what_runs_on_its_engine(
    machine: FakeMachine, fake: Fake, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (profiles / "mine.yaml").open("a") as file:
        file.write(f"runtime: {{python: {fake.python}, vllm: null}}\n")
    up()
    assert run(["lock", "mine"]) == 0
    assert "engine    process" in capsys.readouterr().out, "docker answers, but it runs as a process"
    machine.docker_is_away = EnvironmentMissing("away")
    assert run(["lock", "mine"]) == 0, "and nobody else is asked"


def test_a_command_says_who_holds_a_stack(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    from gemmaspec.run.kept.stack_lock import holder, owned

    up()
    with owned("mine", "up", wants="something else") as owner:
        owner.tell("importing")
        seen = holder("mine")
        assert seen
        assert (seen.command, seen.phase) == ("up", "importing")
        assert up() == 1
        assert "mine is held by gemmaspec up (pid " in capsys.readouterr().err
        assert run(["rollback", "mine"]) in (1, 2)
    assert holder("mine") is None
    assert up() == 0
