"""`watch` over a fake server whose counters the test sets, with a recording restart in place of a real one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import platformdirs
import pytest

from gemmaspec.cli.text import stack as text
from gemmaspec.core.errors import ProfileError, StartFailed, UsageError
from gemmaspec.core.live.faults import Event, FaultKind, Faults, Limits
from gemmaspec.core.live.reaction import Policy, reaction
from gemmaspec.core.profile.load import load_profile
from gemmaspec.look import hooks, memory, watch, watch_all
from gemmaspec.look.sidecar.rounds import WatchLine
from gemmaspec.look.watch import Watched, look
from gemmaspec.run.engine.attested import OTHER_VERSION
from gemmaspec.run.engine.server import State
from gemmaspec.run.kept import stacks, verdicts
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.kept.verdicts import Watching
from gemmaspec.run.machine.memory_guard import MemoryGuard
from tests.support.fake_engine import FakeMachine
from tests.support.fake_server import FakeServer

NAMES = (
    *("num_requests_running", "num_requests_waiting", "generation_tokens_total", "spec_decode_num_drafts_total"),
    *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total", "kv_cache_usage_perc"),
    *("process_start_time_seconds", 'spec_decode_num_accepted_tokens_per_pos_total{position="99999999999"}'),
)
VALUES = ("nan", "inf", "-inf", "-1", "1e308", "1e-320", "0", "9" * 400, "x", "0x10", "")
DEAD = Event(kind=FaultKind.DEAD_DRAFT, begins=True, reason="")
HANGS = Event(kind=FaultKind.HANGS, begins=True, reason="")
SLOWER = Event(kind=FaultKind.SLOWER, begins=True, reason="")
GONE = Event(kind=FaultKind.GONE, begins=True, reason="")


@pytest.mark.parametrize(
    ("event", "policy", "restarts", "action"),
    [
        (DEAD, Policy(), [], "report"),
        (DEAD, Policy(on_dead_draft="off"), [], "off"),
        (DEAD, Policy(on_dead_draft="restart"), [100.0], "restart"),
        (DEAD, Policy(on_dead_draft="restart"), [100.0, 200.0], "report"),
        (DEAD, Policy(on_dead_draft="restart"), [-4000.0, 200.0], "restart"),
        (DEAD, Policy(on_dead_draft="restart", most_restarts_per_hour=0), [], "report"),
        (HANGS, Policy(on_dead_draft="off"), [], "report"),
        (SLOWER, Policy(on_dead_draft="off"), [], "report"),
        (SLOWER, Policy(on_slower="off"), [], "off"),
        (GONE, Policy(on_hang="restart"), [], "report"),
        (GONE, Policy(on_exit="restart"), [], "restart"),
        (Event(kind=FaultKind.RESTARTS, begins=True, reason=""), Policy(on_exit="restart"), [], "report"),
        (HANGS, Policy(on_hang="restart"), [], "restart"),
        (Event(kind=FaultKind.DEAD_DRAFT, begins=False, reason=""), Policy(on_dead_draft="off"), [], "report"),
        (Event(kind=FaultKind.CUT_DRAFT, begins=True, reason=""), Policy(on_dead_draft="off"), [], "report"),
    ],
)
def test_the_profile_decides_what_an_event_causes_up_to_its_limit(
    event: Event, policy: Policy, restarts: list[float], action: str
) -> None:
    assert reaction(event, policy, restarts=restarts, now=300.0).action == action


def test_a_bound_that_is_reached_is_said() -> None:
    done = reaction(DEAD, Policy(on_dead_draft="off"), restarts=[1.0, 2.0], now=10.0)
    assert done.note == "not restarted: the limit of 2 restarts per hour is reached"


class Restarts:
    """Records restarts, or fails."""

    def __init__(self, error: StartFailed | None = None) -> None:
        self.calls: list[tuple[str, bool, bool]] = []
        self.error = error

    def __call__(self, judged: Started, *, no_spec: bool, no_speed: bool) -> None:
        self.calls.append((judged.server.name, no_spec, no_speed))
        if self.error:
            raise self.error


@pytest.fixture
def one(machine: FakeMachine, fake_metrics: FakeServer) -> Watched:
    """The fake server as a stack that runs, with windows of no length so that every reading closes one."""
    started = Started(engine="process", server=fake_metrics.server(), profile="tiny-cpu")
    stacks.stack_folder(started.server.name).mkdir(parents=True)
    stacks.save(started)
    machine.running[started.server.name] = "process", started.server
    policy = Policy(on_dead_draft="off", most_restarts_per_hour=1)
    return Watched(started=started, policy=policy, tellers=hooks.Tellers((), None), faults=closing())


def recorded(one: Watched, **changed: Any) -> None:
    """Change the start that is watched, and its record."""
    one.started = dataclasses.replace(one.started, **changed)
    stacks.save(one.started)


def ended(machine: FakeMachine, state: State) -> None:
    """End the server outside of gemmaspec: its engine sees this from now on."""
    machine.running.clear()
    machine.ended = state


def later(one: Watched, seconds: float) -> None:
    """Put the clock of a watch forward."""
    clock = one.clock
    one.clock = lambda: clock() + seconds


def closing() -> Faults:
    return Faults(limits=Limits(window_s=0.0))


def counters(drafts: int, accepted: int) -> bytes:
    return (
        f"vllm:spec_decode_num_drafts_total {drafts}\n"
        f"vllm:spec_decode_num_draft_tokens_total {4 * drafts}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
    ).encode()


def read(
    one: Watched, fake_metrics: FakeServer, restart: Restarts, *, times: int, accepted: int = 0
) -> list[WatchLine]:
    lines: list[WatchLine] = []
    for turn in range(1, times + 1):
        fake_metrics.metrics = counters(1000 * turn, accepted * turn)
        lines += look(one, power_w=None, restart=restart)
    return lines


@pytest.mark.parametrize(
    ("changed", "always"),
    [
        ({}, True),
        ({"overrides": ("speculative.k_by_requests={1: 4, 8: 2}",)}, True),
        ({"overrides": ("speculative.k_by_requests={1: 4, 8: 0}",)}, False),
        ({"no_spec": True}, False),
    ],
)
def test_tokens_without_drafts_are_a_fault_where_every_step_drafts(
    one: Watched, changed: dict[str, Any], always: bool
) -> None:
    recorded(one, **changed)
    (again,) = watch.watched([one.started.server.name])
    assert again.faults.drafts_always is always


def test_a_server_that_drafts_no_longer_is_switched_off_and_then_not_judged_by_it(
    one: Watched, fake_metrics: FakeServer
) -> None:
    one.faults, restart = dataclasses.replace(closing(), drafts_always=True), Restarts()
    lines: list[WatchLine] = []
    for turn in range(6):
        tokens = f"vllm:generation_tokens_total {2000 * turn}\n".encode()
        fake_metrics.metrics = counters(5000, 4000) + tokens
        lines += look(one, power_w=None, restart=restart)
    assert [(line.what, line.fault) for line in lines] == [
        ("begins", "dead draft"), ("drained", "dead draft"), ("off", None)
    ]  # fmt: skip
    assert lines[0].reason.startswith("0 drafts for 2000 tokens in ")
    assert len(restart.calls) == 1


def test_a_dead_draft_is_switched_off_once(one: Watched, fake_metrics: FakeServer) -> None:
    restart = Restarts()
    found = read(one, fake_metrics, restart, times=4)
    assert [(line.what, line.fault) for line in found] == [
        ("begins", "dead draft"), ("drained", "dead draft"), ("off", None)
    ]  # fmt: skip
    assert restart.calls == [(one.started.server.name, True, False)]
    again = read(one, fake_metrics, restart, times=5)
    assert [line.what for line in again] == ["begins"]
    assert "not restarted: the limit of 1 restarts" in again[0].reason
    assert len(restart.calls) == 1


def test_an_acceptance_that_decays_is_named_once_and_acted_on_once(one: Watched, fake_metrics: FakeServer) -> None:
    """It falls by a seventh with each window, from 0.7 to nothing; the server of before is not asked again."""
    restart, accepted, lines = Restarts(), 0.0, []
    for turn in range(1, 60):
        accepted += 4000 * 0.7 * 0.85**turn
        fake_metrics.metrics = counters(1000 * turn, round(accepted))
        lines += look(one, power_w=None, restart=restart)
        if restart.calls:
            break
    assert [(line.what, line.fault) for line in lines] == [
        ("begins", "dead draft"),
        ("drained", "dead draft"),
        ("off", None),
    ]
    assert restart.calls == [("fake", True, False)]
    assert 10 < turn < 40


GARBAGE = (
    *(
        b"",
        b"\0" * 999,
        b"\xff\xfe",
        b"vllm:",
        b"vllm:num_requests_running",
        b"# TYPE vllm:x counter\n",
        b"{}",
        b"<html>",
    ),
    *(b"vllm:num_requests_running{engine='0'} 1\n", b'vllm:num_requests_running{engine="0" 1\n', b"a" * 10**6),
    *(f"vllm:{name} {value}\n".encode() for name in NAMES for value in VALUES),
)
"""What a broken or a hostile server may answer where its counters should be."""


def test_garbage_neither_ends_the_watch_nor_makes_it_restart_more_than_it_may(
    one: Watched, fake_metrics: FakeServer
) -> None:
    """Garbage and good counters in any order, with everything allowed; the seed is in the failure."""
    one.policy = Policy(
        on_dead_draft="restart", on_slower="off", on_hang="restart", on_exit="restart", most_restarts_per_hour=2
    )
    recorded(one, outcome="ready")
    seed = random.randrange(10**6)
    chosen, restart, lines = random.Random(seed), Restarts(), []
    for turn in range(1, 300):
        parts = chosen.choices(GARBAGE, k=chosen.choice((1, 1, 3)))
        good = counters(1000 * turn, chosen.choice((0, 2000 * turn)))
        fake_metrics.metrics = chosen.choice((good, good + b"".join(parts), b"".join(parts)))
        lines += look(one, power_w=chosen.choice((None, 0.0, 900.0)), restart=restart)
    assert len(restart.calls) <= 2, (seed, restart.calls)
    assert all(len(line.reason) < 2000 for line in lines), (seed, lines)
    assert verdicts.last_watch("fake"), seed


def test_a_draft_that_works_is_left_alone(one: Watched, fake_metrics: FakeServer) -> None:
    assert read(one, fake_metrics, Restarts(), times=6, accepted=1500) == []


def test_a_restart_that_fails_is_a_line(one: Watched, fake_metrics: FakeServer) -> None:
    found = read(one, fake_metrics, Restarts(StartFailed("no memory")), times=4)
    assert [(line.what, line.reason) for line in found[2:]] == [("failed", "no memory; tried again in 10 s")]


def test_a_server_that_does_not_answer_is_named_once_and_its_return_too(one: Watched, fake_metrics: FakeServer) -> None:
    fake_metrics.metrics = b"\xff not metrics {"
    restart = Restarts()
    lines = [line for _ in range(5) for line in look(one, power_w=None, restart=restart)]
    assert [line.what for line in lines] == ["unreachable"]
    fake_metrics.metrics = counters(1, 1)
    assert [line.what for line in look(one, power_w=None, restart=restart)] == ["answers"]


def told(one: Watched, fake_metrics: FakeServer, *, times: int = 4) -> list[WatchLine]:
    """Return the lines of some looks, and what came of telling."""
    lines = read(one, fake_metrics, Restarts(), times=times)
    assert one.tellers.finish(30)
    return lines + list(look(one, power_w=None, restart=Restarts()))


def impatient(command: Sequence[str], url: str | None) -> hooks.Tellers:
    return hooks.Tellers(command, url, waits_s=(0.2, 0.2))


def test_the_hook_gets_the_event_and_its_failure_is_a_line(
    one: Watched, fake_metrics: FakeServer, tmp_path: Path
) -> None:
    target = tmp_path / "event.json"
    script = f"import sys; open({str(target)!r}, 'a').write(sys.stdin.read()); sys.exit(3)"
    one.tellers, one.policy = impatient((sys.executable, "-c", script), None), Policy()
    found = told(one, fake_metrics)
    assert target.read_text().count('"kind": "dead draft"') == 3
    assert [line.what for line in found] == ["begins", "hook", "hook", "hook"]
    assert "told again in 0 s" in found[1].reason
    assert found[3].reason.endswith("ended with exit code 3; given up after 3 tries")
    one.tellers = impatient(("/nonexistent/hook",), None)
    one.faults = closing()
    assert "No such file" in told(one, fake_metrics)[1].reason


class Receiver(ThreadingHTTPServer):
    """Takes what is posted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.got: list[Any] = []
        self.status = 200
        self.failures = 0
        """How often it answers `status`; then 200."""
        self.answers = threading.Event()
        """Until then it lets whoever posts wait."""
        self.answers.set()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.answers.wait(60)
        fails, self.server.failures = self.server.failures > 0, self.server.failures - 1
        self.send_response(self.server.status if fails else 200)
        self.send_header("Location", "http://192.0.2.1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_an_event_is_posted_again_until_it_arrives_and_a_failure_names_the_host_alone(
    one: Watched, fake_metrics: FakeServer
) -> None:
    receiver = Receiver()
    one.tellers = impatient((), f"http://127.0.0.1:{receiver.server_address[1]}/secret-path")
    one.policy = Policy()
    assert [line.what for line in told(one, fake_metrics)] == ["begins"]
    (got,) = receiver.got
    assert (got["stack"], got["kind"], got["begins"]) == (one.started.server.name, "dead draft", True)
    receiver.status, receiver.failures, one.faults = 500, 1, closing()
    assert [line.reason for line in told(one, fake_metrics)[1:]] == [
        "webhook at 127.0.0.1: HTTP 500; told again in 0 s"
    ]
    assert len(receiver.got) == 3
    receiver.status, receiver.failures, one.faults = 302, 9, closing()
    assert told(one, fake_metrics)[-1].reason == "webhook at 127.0.0.1: HTTP 302; given up after 3 tries"
    receiver.shutdown()
    receiver.server_close()
    one.faults = closing()
    assert told(one, fake_metrics)[-1].reason == "webhook at 127.0.0.1: cannot be reached; given up after 3 tries"


def test_a_restart_waits_for_no_webhook(one: Watched, fake_metrics: FakeServer) -> None:
    receiver = Receiver()
    receiver.answers.clear()
    one.tellers, restart = hooks.Tellers((), f"http://127.0.0.1:{receiver.server_address[1]}/x"), Restarts()
    read(one, fake_metrics, restart, times=4)
    assert len(restart.calls) == 1
    assert not one.tellers.finish(0)
    receiver.answers.set()
    assert one.tellers.finish(30)
    receiver.shutdown()
    receiver.server_close()


def gone_server(one: Watched, machine: FakeMachine) -> None:
    one.policy = Policy(on_exit="restart", most_restarts_per_hour=3)
    recorded(one, outcome="ready")
    ended(machine, State(status="exited", exit_code=137))


def test_a_restart_that_failed_is_tried_again_with_a_growing_wait_and_told(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    gone_server(one, machine)
    receiver, clock = Receiver(), [1000.0]
    one.tellers = hooks.Tellers((), f"http://127.0.0.1:{receiver.server_address[1]}/x")
    one.clock = lambda: clock[0]
    fake_metrics.metrics = b"\xff"
    restart = Restarts(StartFailed("no memory"))
    at = []
    for _ in range(200):
        before = len(restart.calls)
        list(look(one, power_w=None, restart=restart))
        at += [clock[0]] * (len(restart.calls) - before)
        clock[0] += 1
    assert [round(b - a) for a, b in itertools.pairwise(at)] == [10, 20]
    assert one.tellers.finish(30)
    told = [got["reason"] for got in receiver.got]
    assert "a restart failed: no memory; tried again in 10 s" in told
    assert any("the limit of 3 restarts per hour is reached" in one for one in told)
    receiver.shutdown()
    receiver.server_close()


def test_a_restart_is_not_tried_again_after_down(one: Watched, fake_metrics: FakeServer, machine: FakeMachine) -> None:
    gone_server(one, machine)
    fake_metrics.metrics = b"\xff"
    restart = Restarts(StartFailed("no memory"))
    lines = [line for _ in range(4) for line in look(one, power_w=None, restart=restart)]
    assert "tried again in 10 s" in lines[-1].reason
    recorded(one, outcome="stopped")
    later(one, 60)
    assert [line for _ in range(4) for line in look(one, power_w=None, restart=restart)] == []
    assert len(restart.calls) == 1


def test_nothing_is_restarted_where_down_by_force_could_write_nothing(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    gone_server(one, machine)
    fake_metrics.metrics = b"\xff"
    verdict = stacks.stack_folder(one.started.server.name) / verdicts.WATCH
    verdict.mkdir()  # no file can be written there
    restart = Restarts()
    lines = [line for _ in range(4) for line in look(one, power_w=None, restart=restart)]
    assert [line.what for line in lines] == ["unreachable", "begins", "failed"]
    assert "not restarted: cannot write" in lines[-1].reason
    verdict.rmdir()
    later(one, 1000)
    assert [line for _ in range(4) for line in look(one, power_w=None, restart=restart)] == []
    assert restart.calls == [], "nobody knows whether it was stopped, also when the folder can be written again"


def test_a_server_that_dribbles_keeps_no_other_from_being_restarted(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    gone_server(one, machine)
    hangs, called = threading.Event(), threading.Event()

    class FakeGuard(MemoryGuard):
        def danger(self) -> str:
            hangs.wait(60)
            raise InterruptedError("the test is over, and this look with it")

    slow = dataclasses.replace(one, tellers=hooks.Tellers((), None), faults=closing(), guard=FakeGuard())
    fake_metrics.metrics = b"\xff"

    def restart(judged: Started, *, no_spec: bool, no_speed: bool) -> None:
        called.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch_all.watch_all([slow, one], interval=0.05, restart=restart, tell=lambda _: None)
    assert called.is_set()
    hangs.set()


def test_the_receivers_can_be_tested(one: Watched) -> None:
    receiver = Receiver()
    url = f"http://127.0.0.1:{receiver.server_address[1]}/x"
    one.tellers = hooks.Tellers((), url)
    assert watch_all.test_event([one]) == []
    assert receiver.got[0]["kind"] == "test"
    receiver.status, receiver.failures = 500, 9
    assert watch_all.test_event([one]) == [(one.started.server.name, "webhook at 127.0.0.1: HTTP 500")]
    one.tellers = hooks.Tellers((), None)
    assert "neither watch.hook nor watch.webhook is set" in watch_all.test_event([one])[0][1]
    receiver.shutdown()
    receiver.server_close()


@pytest.mark.parametrize("url", [
    "http://example.org/x", "ftp://example.org", "https://user:pw@example.org", "https://", "x", "http://127.0.0.1:x",
    "http://192.168.1.1/", "https://[::1",
])  # fmt: skip
def test_a_webhook_is_https_or_of_this_machine_and_holds_no_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileError, match="webhook"):
        load_profile("tiny-cpu", overrides=(f"watch.webhook={json.dumps(url)}",))
    monkeypatch.setenv(hooks.VARIABLE, url)
    with pytest.raises(UsageError, match=hooks.VARIABLE):
        hooks.address(None)


@pytest.mark.parametrize(
    "url", ["https://example.org/x?y=1", "http://127.0.0.1:9/x", "http://[::1]/", "http://localhost"]
)
def test_good_webhooks(url: str) -> None:
    assert load_profile("tiny-cpu", overrides=(f"watch.webhook={json.dumps(url)}",)).profile.watch.webhook == url


def running(requests: int, drafts: int) -> bytes:
    return counters(drafts, 0) + f"vllm:num_requests_running {requests}\n".encode()


def test_requests_are_waited_for_before_a_restart(one: Watched, fake_metrics: FakeServer) -> None:
    fake_metrics.metrics_in_turn = [running(3, 0), running(2, 0)]
    fake_metrics.metrics = running(0, 0)
    assert watch._drain(one, poll_s=0.0) == "3 requests ended within 0 s"
    assert fake_metrics.metrics_in_turn == []
    one.started = dataclasses.replace(one.started, server=dataclasses.replace(one.started.server, stop_grace_s=0.0))
    fake_metrics.metrics = running(1, 0) + b"vllm:num_requests_waiting 1\n"
    assert watch._drain(one) == "2 requests still ran after 0 s, and are aborted"


def test_a_hung_server_is_not_waited_for(one: Watched, fake_metrics: FakeServer) -> None:
    one.policy = Policy(on_hang="restart")
    one.faults = Faults(limits=Limits(hang_without_power_s=0.0))
    fake_metrics.metrics = running(1, 0)
    restart = Restarts()
    lines = [line for _ in range(3) for line in look(one, power_w=None, restart=restart)]
    assert [line.what for line in lines] == ["begins", "restarted"]
    assert restart.calls == [(one.started.server.name, False, False)]


def test_a_server_that_looks_idle_and_answers_no_question_hangs(one: Watched, fake_metrics: FakeServer) -> None:
    one.policy = Policy(on_hang="restart")
    one.faults = Faults(limits=Limits(hang_without_power_s=0.0))
    one.started = dataclasses.replace(one.started, server=dataclasses.replace(one.started.server, needs_api_key=True))
    fake_metrics.metrics, fake_metrics.seconds_per_byte = running(0, 5), 0.2  # its answer takes a minute
    assert list(look(one, power_w=None, restart=Restarts())) == []
    assert one.question.waits
    lines = list(look(one, power_w=None, restart=Restarts()))
    assert [line.what for line in lines] == ["begins", "restarted"]
    assert not one.question.waits, "what the server of before owes is no fault of the one that runs now"
    assert lines[0].reason.startswith("a question of the watch waits, but no token for ")


@pytest.mark.parametrize("on_exit", ["report", "restart"])
def test_a_server_that_exited_is_named_and_restarted_if_the_profile_says_so(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine, on_exit: Literal["report", "restart"]
) -> None:
    one.policy = Policy(on_exit=on_exit, most_restarts_per_hour=1)
    recorded(one, outcome="ready")
    ended(machine, State(status="exited", exit_code=137))
    fake_metrics.metrics = b"\xff"
    restart = Restarts()
    lines = [line for _ in range(8) for line in look(one, power_w=None, restart=restart)]
    whats = [(line.what, line.fault) for line in lines]
    assert lines[1].reason.startswith("the server has exited with exit code 137")
    if on_exit == "report":
        assert whats == [("unreachable", None), ("begins", "gone")]
        return
    assert whats == [("unreachable", None), ("begins", "gone"), ("restarted", None), *whats[:2]]
    assert "not restarted: the limit of 1 restarts per hour" in lines[-1].reason
    assert len(restart.calls) == 1


@pytest.mark.parametrize(("outcome", "status"), [("stopped", "absent"), ("ready", "running"), ("failed", "exited")])
def test_a_server_that_was_stopped_or_still_lives_has_not_exited(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine, outcome: Any, status: Any
) -> None:
    recorded(one, outcome=outcome)
    ended(machine, State(status=status))
    fake_metrics.metrics = b"\xff"
    said = "stopped" if outcome == "stopped" else "unreachable"
    assert [line.what for _ in range(5) for line in look(one, power_w=None, restart=Restarts())] == [said]


def test_what_watch_knows_is_kept_and_its_restarts_survive_itself(one: Watched, fake_metrics: FakeServer) -> None:
    name = one.started.server.name
    read(one, fake_metrics, Restarts(), times=4)
    kept = verdicts.last_watch(name)
    assert kept is not None
    assert (kept.active, len(kept.restarts), kept.last) == ({}, 1, "dead draft: restarted without speculation")
    read(one, fake_metrics, Restarts(), times=5)
    kept = verdicts.last_watch(name)
    assert kept is not None
    assert list(kept.active) == ["dead draft"]
    assert kept.last.startswith("dead draft: not restarted: the limit of 1 restarts")
    (again,) = watch.watched([name])
    assert again.restarts == list(kept.restarts)
    assert kept.unknown == (watch.NO_REFERENCE,)
    (stacks.stack_folder(name) / verdicts.WATCH).write_text('{"at": []}')
    assert verdicts.last_watch(name) is None


def test_step_times_that_bench_kept_are_the_reference(one: Watched) -> None:
    assert watch.watched([one.started.server.name])[0].faults.reference is None
    file = platformdirs.user_config_path("gemmaspec") / "measured" / "tiny-cpu.json"
    file.parent.mkdir(parents=True)
    common = {"concurrency": 1, "context": 20, "machine": "cpu"}
    rows = [
        {"method": "none", "k": 0, "tokens_per_second": 40.0, "acceptance": [], **common},
        {"method": "draft_model", "k": 1, "tokens_per_second": 60.0, "acceptance": [0.5], **common},
    ]
    file.write_text(json.dumps({"schema": 1, "rows": rows}))
    found = watch.watched([one.started.server.name])[0].faults.reference
    assert found is not None
    assert {at: round(step, 4) for at, step in found.seconds.items()} == {(0, 1): 0.025, (1, 1): 0.025}
    file.write_text(json.dumps({"schema": 1, "rows": rows[1:]}))
    assert watch.watched([one.started.server.name])[0].faults.reference is None


def test_the_memory_gate_waits_until_nothing_comes_back_any_more() -> None:
    gigabyte = 10**9
    readings = iter([gigabyte, 5 * gigabyte, 9 * gigabyte, 9 * gigabyte, 9 * gigabyte, 9 * gigabyte])
    notes: list[str] = []
    memory.wait_released(notes.append, read=lambda: next(readings), poll_s=0.0)
    assert notes == ["8.0 GB were freed in 0 s"]
    assert list(readings) == []


def test_the_memory_gate_is_bounded_and_silent_where_nothing_was_held() -> None:
    notes: list[str] = []
    growing = itertools.count(0, 10**12)
    memory.wait_released(notes.append, read=lambda: next(growing), poll_s=0.001, longest_s=0.02)
    assert notes == ["memory is still being freed after 0 s; starting anyway"]
    notes.clear()
    memory.wait_released(notes.append, read=lambda: 10**9, poll_s=0.0)
    assert notes == []
    assert memory.available() > 0


ENGINE_BEGINS = (
    "Initializing a V1 LLM engine (v0.32.0) with config: …, 'cudagraph_mode': <CUDAGraphMode.FULL: (2, 1)>, …"
)
GRAPHS_LOWERED = (
    "CUDAGraphMode.FULL is not supported with spec-decode for attention backend FlashInferBackend (support: "
    "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting cudagraph_mode=PIECEWISE"
)


def test_a_start_that_drafts_without_graphs_is_an_event_once_and_again_after_a_restart(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    recorded(one, profile="nvidia-31b-mtp")
    machine.log = [ENGINE_BEGINS, GRAPHS_LOWERED]
    begins, *more = read(one, fake_metrics, Restarts(), times=3, accepted=3000)
    assert (begins.what, begins.fault, more, machine.logs_read) == ("begins", "no graphs", [], 1)
    assert begins.reason.startswith("CUDA graphs: target PIECEWISE, draft NONE: ")
    assert "; slower than no draft: " in begins.reason
    assert begins.reason.endswith("; next: gemmaspec restart fake --set serve.attention_backend=TRITON_ATTN")
    ends, again = read(one, fake_metrics, Restarts(), times=2, accepted=3000)  # its counters begin anew
    assert (ends.what, ends.fault, ends.reason) == ("ends", "no graphs", "the server was restarted")
    assert (again.what, again.fault, machine.logs_read) == ("begins", "no graphs", 2)
    machine.log = [ENGINE_BEGINS]
    assert [line.what for line in read(one, fake_metrics, Restarts(), times=2, accepted=3000)] == ["ends"]


def test_a_start_that_is_not_attested_is_an_event_and_the_next_ends_it(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    fine = {"state": "attested", "text": "attested: 4 functions in 3 processes"}
    machine.report = {"attested": fine}
    assert read(one, fake_metrics, Restarts(), times=2, accepted=3000) == []
    kept = verdicts.last_watch(one.started.server.name)
    assert kept
    assert kept.attested == "attested: 4 functions in 3 processes"
    machine.report = {"attested": {"state": "different", "text": "NOT ATTESTED: vllm.a.f"}}
    begins, *more = read(
        one, fake_metrics, Restarts(), times=2, accepted=3000
    )  # its counters begin anew: another start
    assert (begins.what, begins.fault, begins.reason) == ("begins", "patch replaced", "NOT ATTESTED: vllm.a.f")
    assert more == []
    machine.report = {"attested": fine}
    assert {line.what for line in read(one, fake_metrics, Restarts(), times=2, accepted=3000)} == {"ends"}


def test_what_another_version_of_gemmaspec_started_is_no_fault(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    told = {"state": "not attested", "text": f"NOT ATTESTED: {OTHER_VERSION}", "problems": [OTHER_VERSION]}
    machine.report = {"attested": told}
    assert read(one, fake_metrics, Restarts(), times=2, accepted=3000) == []
    kept = verdicts.last_watch(one.started.server.name)
    assert kept
    assert kept.attested == f"NOT ATTESTED: {OTHER_VERSION}"


@pytest.mark.parametrize("days", [-400, 400])
def test_a_wrong_clock_neither_delays_nor_repeats_anything(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """The machine's clock is set while `watch` runs; what it counts in seconds goes on."""
    gone_server(one, machine)
    fake_metrics.metrics = b"\xff"
    restart = Restarts(StartFailed("no memory"))
    for _ in range(4):
        list(look(one, power_w=None, restart=restart))
    assert (len(restart.calls), one.again is not None) == (1, True)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + days * 86400)
    list(look(one, power_w=None, restart=restart))
    assert len(restart.calls) == 1, "10 s are not over"
    later(one, 11)
    list(look(one, power_w=None, restart=restart))
    assert len(restart.calls) == 2
    kept = verdicts.last_watch(one.started.server.name)
    assert kept
    assert kept.looks
    assert len(kept.restarts) == 2


def test_restarts_of_a_time_that_has_not_come_bound_nothing(one: Watched) -> None:
    event = Event(kind=FaultKind.GONE, begins=True, reason="")
    policy = Policy(on_exit="restart", most_restarts_per_hour=1)
    assert reaction(event, policy, restarts=[1e9 + 86400], now=1e9).action == "restart"
    assert reaction(event, policy, restarts=[1e9 - 60], now=1e9).action == "report"


def test_status_shows_what_watch_knows(one: Watched, fake_metrics: FakeServer) -> None:
    now = stacks.now()
    name = one.started.server.name
    looking = Watching(at=now, active={"hangs": now - 180}, unknown=("a rule (no data)",), last="hangs: restarted")
    verdicts.keep_watch(name, looking)
    last = verdicts.last_verdicts(one.started)
    assert list(text.verdict_rows(last)) == [
        ("watch", "hangs since 3 min ago, looked 0 s ago; hangs: restarted; not judged: a rule (no data)")
    ]
    assert text.verdict_document(last)["watch"]["watches"] is True
    verdicts.keep_watch(name, Watching(at=now - 7200))
    assert list(text.verdict_rows(verdicts.last_verdicts(one.started))) == [
        ("watch", "no fault, ended; it looked last 2 h ago")
    ]


def test_the_log_is_the_user_s_own_redacted_and_follows_no_link(one: Watched, tmp_path: Path) -> None:
    line = WatchLine(
        at="2026-01-01T00:00:00+00:00", stack=one.started.server.name, what="begins", reason="secret-token"
    )
    watch.log(line, redact=lambda text: text.replace("secret-token", "***"))
    file = stacks.stack_folder(line.stack) / watch.LOG
    assert "secret-token" not in file.read_text()
    assert json.loads(file.read_text())["reason"] == "***"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    watch.log(line, redact=str)
    assert not (tmp_path / "elsewhere").exists()


def test_a_long_log_is_begun_anew(one: Watched) -> None:
    for _ in range(2):
        watch.log(WatchLine(at="now", stack=one.started.server.name, what="begins"), redact=str, most=10)
    folder = stacks.stack_folder(one.started.server.name)
    assert len((folder / "watch.log").read_text().splitlines()) == 1
    assert len((folder / "watch.log.1").read_text().splitlines()) == 1


def test_the_systemd_unit_quotes_what_it_is_given(tmp_path: Path) -> None:
    text = watch_all.unit(Path("/opt/my tools/gemmaspec"), ["a b", 'q"$%'])
    assert 'ExecStart="/opt/my tools/gemmaspec" "watch" "a b" "q\\"$$%%"' in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_unit_without_a_word_and_would_say_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "gemmaspec-watch.service"

    def verify(text: str) -> str:
        file.write_text(text)
        command = ["systemd-analyze", "verify", "--user", str(file)]
        runtime = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=runtime).stderr

    good = watch_all.unit(Path("/bin/true"), ["tiny-cpu"])
    assert file.name not in verify(good)
    assert file.name in verify(good.replace("KillMode=process", "KillMode=nobody"))


def test_a_dead_draft_names_the_patches_for_speed_and_they_are_left_out_first(
    one: Watched, fake_metrics: FakeServer, machine: FakeMachine
) -> None:
    machine.report = {"patches": [{"patch": "faster", "purpose": "speed", "state": "applies"}]}
    one.policy = Policy(on_dead_draft="off", most_restarts_per_hour=2)
    restart = Restarts()
    found = read(one, fake_metrics, restart, times=4)
    name = one.started.server.name
    assert [line.what for line in found] == ["begins", "drained", "restarted"]
    assert f"patches for speed (faster); without: gemmaspec up {name} --no-speed-patches" in found[0].reason
    assert found[2].reason == "restarted and without faster"
    assert restart.calls == [(name, False, True)], "it still speculates"
