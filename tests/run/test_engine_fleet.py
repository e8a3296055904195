"""The engine of a server on several machines, with fake daemons: faults that two real ones are too slow for."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, PatchConflict, StartFailed
from gemmaspec.core.live.faults import Faults, Limits
from gemmaspec.core.live.reaction import Policy
from gemmaspec.look import watch
from gemmaspec.look.hooks import Tellers
from gemmaspec.look.status import status
from gemmaspec.look.watch import Watched
from gemmaspec.run.engine import fleet
from gemmaspec.run.engine.fleet import FleetEngine
from gemmaspec.run.engine.server import Node, Server, State
from gemmaspec.run.kept import logs, stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.ready.wait import Checks, wait_ready
from tests.core.test_fleet import report
from tests.support.fake_server import FakeServer

NODES = (Node(host="a", docker="tcp://a:1"), Node(host="b", docker="tcp://b:1"))
SERVER = Server(
    name="pair", folder=Path("/nonexistent"), port=1, model="tiny", speculates=True, copied=True, nodes=NODES
)
RUNNING, ABSENT = State(status="running", detail="container 1"), State(status="absent")


class FakeDaemon:
    """What a daemon does, by the name of its host: a value to return, an error to raise, a function to call."""

    does: dict[str, dict[str, Any]]
    calls: list[str]

    def __init__(self, node: Node) -> None:
        self.host = node.host

    def _done(self, word: str, default: Any = None) -> Any:
        FakeDaemon.calls.append(f"{word} {self.host}")
        found = FakeDaemon.does.get(self.host, {}).get(word, default)
        if isinstance(found, BaseException):
            raise found
        return found() if callable(found) else found

    def close(self) -> None:
        pass

    def create(self, server: Server) -> None:
        assert server.compose_file == f"compose.{self.host}.yaml"
        self._done("create")

    def start_created(self, server: Server) -> None:
        self._done("start")

    def stop(self, server: Server) -> bool:
        return bool(self._done("stop", True))

    def state(self, server: Server) -> Any:
        return self._done("state", RUNNING)

    def report(self, server: Server) -> Any:
        return self._done("report", report())

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        yield from self._done("logs", [f"line of {self.host}"])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FleetEngine:
    """The engine of these hosts, whose daemons are fakes wherever an engine is made anew."""
    monkeypatch.setattr(fleet, "DockerEngine", FakeDaemon)
    FakeDaemon.does, FakeDaemon.calls = {}, []
    return FleetEngine(NODES)


def recorded(server: Server, **more: Any) -> Started:
    """Record a server that has become ready, as `up` does."""
    record = Started(engine="docker", server=server, profile="tiny-cpu", outcome="ready", **more)
    stacks.stack_folder(server.name).mkdir(parents=True)
    stacks.save(record)
    return record


def away(host: str) -> EnvironmentMissing:
    return EnvironmentMissing(f"docker at {host} stopped answering", hint="docker info")


def exited(code: int, ended: float) -> State:
    return State(status="exited", exit_code=code, ended=ended, detail=f"code {code}")


def error(call: Any) -> GemmaspecError:
    with pytest.raises(GemmaspecError) as raised:
        call()
    return raised.value


def test_no_rank_starts_before_the_files_are_on_every_host(engine: FleetEngine) -> None:
    engine.start(SERVER)
    assert {call.split()[0] for call in FakeDaemon.calls[:2]} == {"create"}
    assert {call.split()[0] for call in FakeDaemon.calls[2:]} == {"start"}


@pytest.mark.parametrize("step", ["create", "start"])
def test_a_host_that_fails_leaves_nothing_running_on_the_other(engine: FleetEngine, step: str) -> None:
    FakeDaemon.does = {"b": {step: StartFailed("no room", hint="df -h")}}
    found = error(lambda: engine.start(SERVER))
    assert (found.message, found.hint, found.exit_code) == ("b: no room", "df -h    # on b", 6)
    assert {"stop a", "stop b"} <= set(FakeDaemon.calls)


def test_what_may_still_run_on_a_host_that_went_away_is_said(engine: FleetEngine) -> None:
    FakeDaemon.does = {"b": {"start": away("b"), "stop": away("b")}}
    assert error(lambda: engine.start(SERVER)).message == (
        "b: docker at b stopped answering\nb: docker at b stopped answering; what runs there is unknown"
    )
    assert "stop a" in FakeDaemon.calls


def test_ctrl_c_stops_every_host(engine: FleetEngine) -> None:
    FakeDaemon.does = {"b": {"start": KeyboardInterrupt()}}
    with pytest.raises(KeyboardInterrupt):
        engine.start(SERVER)
    assert {"stop a", "stop b"} <= set(FakeDaemon.calls)


def test_all_hosts_are_stopped_at_once_and_one_that_does_not_answer_is_named(engine: FleetEngine) -> None:
    both = threading.Barrier(2, timeout=60)
    FakeDaemon.does = {host: {"stop": lambda: both.wait() >= 0} for host in "ab"}
    assert engine.stop(SERVER) is True
    FakeDaemon.does = {"a": {"stop": away("a")}}
    found = error(lambda: engine.stop(SERVER))
    assert found.message.splitlines() == [
        "a: docker at a stopped answering; what runs there is unknown",
        "pair is stopped on b",
    ]
    assert found.hint == "gemmaspec down pair    # once every host answers"


@pytest.mark.parametrize(
    ("a", "b", "status", "host"),
    [
        (RUNNING, RUNNING, "running", ""),
        (RUNNING, dataclasses.replace(RUNNING, unhealthy=True), "running", "b"),
        (ABSENT, ABSENT, "absent", ""),
        (RUNNING, ABSENT, "exited", "b"),
        (exited(1, 20.0), exited(3, 10.0), "exited", "b"),
        (exited(1, 10.0), exited(3, 20.0), "exited", "a"),
        (exited(1, 10.0), EnvironmentMissing("away"), "exited", "a"),
    ],
)
def test_a_rank_that_has_ended_ends_the_server_and_the_first_that_is_not_well_is_named(
    engine: FleetEngine, a: Any, b: Any, status: str, host: str
) -> None:
    FakeDaemon.does = {"a": {"state": a}, "b": {"state": b}}
    found = engine.state(SERVER)
    assert (found.status, found.host) == (status, host)
    assert found.unhealthy is (found.status == "running" and host != "")


@pytest.mark.parametrize("other", [RUNNING, ABSENT])
def test_a_host_that_does_not_answer_is_neither_absent_nor_running(engine: FleetEngine, other: State) -> None:
    FakeDaemon.does = {"a": {"state": other}, "b": {"state": away("b")}}
    assert error(lambda: engine.state(SERVER)).message == "b: docker at b stopped answering"
    record = Started(engine="docker", server=SERVER, profile="pair", outcome="stopped")
    assert stacks.look(record, engine).status == "unknown"


@pytest.mark.usefixtures("engine")
def test_a_daemon_that_hangs_is_given_up() -> None:
    engine, end = FleetEngine(NODES, look_s=0.05), threading.Event()
    FakeDaemon.does = {"b": {"state": lambda: end.wait(30)}}
    assert "b: no answer within" in error(lambda: engine.state(SERVER)).message
    end.set()


def test_ranks_that_do_not_report_the_same_are_not_ready(engine: FleetEngine) -> None:
    engine.ensure_answers(SERVER)
    FakeDaemon.does = {"b": {"report": report(plan_sha256="q" * 64)}}
    found = error(lambda: engine.ensure_answers(SERVER))
    assert isinstance(found, PatchConflict)
    assert "qqqqqqqqqqqq… on b" in found.message
    FakeDaemon.does = {"b": {"state": exited(1, 1.0)}}
    assert "rank 1 on b has ended" in error(lambda: engine.ensure_answers(SERVER)).message


def test_every_line_has_its_host_and_an_unreadable_log_is_said(engine: FleetEngine) -> None:
    FakeDaemon.does = {"b": {"logs": away("b")}}
    expected = ["a | line of a", "b | (its log cannot be read: docker at b stopped answering)"]
    assert list(engine.logs(SERVER)) == expected
    assert sorted(engine.logs(SERVER, follow=True)) == expected


def test_a_failed_start_quotes_the_log_of_the_rank_that_failed_first(engine: FleetEngine) -> None:
    FakeDaemon.does = {
        "a": {"state": exited(1, 20.0), "logs": ["Connection closed by peer"]},
        "b": {"state": exited(3, 10.0), "logs": ["ValueError: the reason"]},
    }
    checks = Checks(healthy=lambda _: False, rest_s=1)
    found = error(
        lambda: wait_ready(engine, SERVER, timeout_s=60, on_phase=lambda *_: None, checks=checks, sleep=time.sleep)
    )
    assert found.exit_code == 6
    assert "pair on b" in found.message
    assert "exit code 3" in found.message
    assert "the reason" in found.message
    assert "Connection closed" not in found.message


@pytest.mark.usefixtures("engine")
def test_watch_stops_what_is_left_of_a_server_that_lost_a_rank() -> None:
    record = recorded(dataclasses.replace(SERVER, folder=stacks.stack_folder("pair")))
    one = Watched(started=record, policy=Policy(), tellers=Tellers((), None))
    FakeDaemon.does = {"b": {"state": exited(137, 10.0)}}

    def never(name: str, *, no_spec: bool) -> None:
        raise AssertionError("the profile does not ask for a restart")

    (line,) = watch._look(one, power_w=None, restart=never)
    assert (line.what, line.fault) == ("begins", "gone")
    assert line.reason.startswith("rank 1 on b has ended (code 137); the other ranks were stopped")
    assert {"stop a", "stop b"} <= set(FakeDaemon.calls)
    kept = list(logs.logs("pair", follow=False, tail=None, previous=True))
    assert kept == ["a | line of a", "b | line of b"], "of what was stopped nothing else is left"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("reached_at", "hangs"), [(None, True), ("far", False)])
def test_the_power_of_this_machines_gpus_says_nothing_of_a_server_elsewhere(
    fake_metrics: FakeServer, reached_at: str | None, hangs: bool
) -> None:
    """A request runs that gets no token: with the GPU's power known, a server may do that for less long."""
    record = recorded(dataclasses.replace(SERVER, port=fake_metrics.port, reached_at=reached_at))
    fake_metrics.metrics = b"vllm:num_requests_running 1\nvllm:generation_tokens_total 9\n"
    faults = Faults(limits=Limits(hang_s=0.0, hang_without_power_s=1000.0))
    one = Watched(started=record, policy=Policy(), tellers=Tellers((), None), faults=faults)
    lines = [line for _ in range(3) for line in watch._look(one, power_w=5.0, restart=lambda *_, **__: None)]
    assert [line.fault for line in lines] == (["hangs"] if hangs else [])


@pytest.mark.usefixtures("engine")
def test_status_says_which_rank_is_unhealthy(fake_metrics: FakeServer) -> None:
    recorded(dataclasses.replace(SERVER, port=fake_metrics.port))
    for host, said in (("a", "its health check gets no token"), ("b", "the health check of b does not reach rank 0")):
        FakeDaemon.does = {host: {"state": State(status="running", unhealthy=True)}}
        (found,) = status("pair")
        assert (found.word, found.why.endswith(said)) == ("unknown", True), found.why
