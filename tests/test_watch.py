"""`watch` over a fake server whose counters the test sets, with a recording restart in place of a real one."""

from __future__ import annotations

import dataclasses
import json
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.deploy import live_k, stacks, watch
from gemmaspec.deploy.stacks import Started
from gemmaspec.deploy.watch import Watched, WatchLine, look
from gemmaspec.errors import StartFailed, TimedOut
from gemmaspec.live import faults
from gemmaspec.live.faults import Event, FaultKind
from gemmaspec.live.live_k import InUse
from gemmaspec.live.reaction import Policy, reaction
from tests.standin import StandIn, stand_in

DEAD = Event(kind=FaultKind.DEAD_DRAFT, begins=True, reason="")
HANGS = Event(kind=FaultKind.HANGS, begins=True, reason="")


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
        (HANGS, Policy(on_hang="restart"), [], "restart"),
        (Event(kind=FaultKind.DEAD_DRAFT, begins=False, reason=""), Policy(on_dead_draft="off"), [], "report"),
        (Event(kind=FaultKind.CUT_DRAFT, begins=True, reason=""), Policy(on_dead_draft="off"), [], "report"),
    ],
)
def test_what_is_done_is_the_profile_s_wish_within_its_bound(
    event: Event, policy: Policy, restarts: list[float], action: str
) -> None:
    assert reaction(event, policy, restarts=restarts, now=300.0).action == action


def test_a_bound_that_is_reached_is_said() -> None:
    done = reaction(DEAD, Policy(on_dead_draft="off"), restarts=[1.0, 2.0], now=10.0)
    assert done.note == "not restarted: the limit of 2 restarts per hour is reached"


class Restarts:
    """Records restarts, or fails."""

    def __init__(self, error: StartFailed | None = None) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.error = error

    def __call__(self, name: str, *, no_spec: bool) -> None:
        self.calls.append((name, no_spec))
        if self.error:
            raise self.error


@pytest.fixture
def fake() -> Iterator[StandIn]:
    with stand_in() as server:
        yield server


@pytest.fixture
def one(fake: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The fake server as a stack, with windows of no length so that every reading closes one."""
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path))
    monkeypatch.setattr(faults, "WINDOW_S", 0.0)
    started = Started(engine="process", server=fake.server(), profile="tiny-cpu")
    monkeypatch.setattr(stacks, "find", lambda _: started)
    (tmp_path / "stacks" / started.server.name).mkdir(parents=True)
    return Watched(started=started, policy=Policy(on_dead_draft="off", most_restarts_per_hour=1), hook=())


def counters(drafts: int, accepted: int) -> bytes:
    return (
        f"vllm:spec_decode_num_drafts_total {drafts}\n"
        f"vllm:spec_decode_num_draft_tokens_total {4 * drafts}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
    ).encode()


def read(one: Watched, fake: StandIn, restart: Restarts, *, times: int, accepted: int = 0) -> list[WatchLine]:
    lines: list[WatchLine] = []
    for turn in range(1, times + 1):
        fake.metrics = counters(1000 * turn, accepted * turn)
        lines += look(one, power_w=None, restart=restart)
    return lines


def test_a_dead_draft_is_switched_off_once(one: Watched, fake: StandIn) -> None:
    restart = Restarts()
    found = read(one, fake, restart, times=4)
    assert [(line.what, line.fault) for line in found] == [("begins", "dead draft"), ("off", None)]
    assert restart.calls == [(one.started.server.name, True)]
    again = read(one, fake, restart, times=5)
    assert [line.what for line in again] == ["begins"]
    assert "not restarted: the limit of 1 restarts" in again[0].reason
    assert len(restart.calls) == 1


def test_with_live_k_a_dead_draft_is_switched_off_without_a_restart(
    one: Watched, fake: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def change(name: str, wish: str, _: object) -> live_k.Changed:
        asked.append((name, wish))
        if len(asked) == 3:
            raise TimedOut("it takes no step")
        return live_k.Changed(name=name, before=4, now=InUse(started_k=4, k=0, id="", since=0.0), seconds=0.1)

    monkeypatch.setattr(live_k, "change", change)
    one.started = dataclasses.replace(one.started, server=dataclasses.replace(one.started.server, live_k=4))
    restart = Restarts()
    found = [line for _ in range(3) for line in read(one, fake, restart, times=4)]
    assert [line.what for line in found] == ["begins", "off"] * 2 + ["begins", "failed"]
    assert "k was 4 and is 0 now" in found[1].reason
    assert asked == [(one.started.server.name, "off")] * 3
    assert restart.calls == []


def test_a_draft_that_works_is_left_alone(one: Watched, fake: StandIn) -> None:
    assert read(one, fake, Restarts(), times=6, accepted=1500) == []


def test_a_restart_that_fails_is_a_line(one: Watched, fake: StandIn) -> None:
    found = read(one, fake, Restarts(StartFailed("no memory")), times=4)
    assert [(line.what, line.reason) for line in found[1:]] == [("failed", "no memory")]


def test_a_server_that_does_not_answer_is_named_once_and_its_return_too(one: Watched, fake: StandIn) -> None:
    fake.metrics = b"\xff not metrics {"
    restart = Restarts()
    lines = [line for _ in range(5) for line in look(one, power_w=None, restart=restart)]
    assert [line.what for line in lines] == ["unreachable"]
    fake.metrics = counters(1, 1)
    assert [line.what for line in look(one, power_w=None, restart=restart)] == ["answers"]


def test_the_hook_gets_the_event_and_its_failure_is_a_line(one: Watched, fake: StandIn, tmp_path: Path) -> None:
    target = tmp_path / "event.json"
    script = f"import sys; open({str(target)!r}, 'w').write(sys.stdin.read()); sys.exit(3)"
    one.hook, one.policy = (sys.executable, "-c", script), Policy()
    found = read(one, fake, Restarts(), times=4)
    assert json.loads(target.read_text())["kind"] == "dead draft"
    assert [line.what for line in found] == ["begins", "hook"]
    one.hook = ("/nonexistent/hook",)
    one.faults = faults.Faults()
    assert "No such file" in read(one, fake, Restarts(), times=4)[1].reason


def test_the_log_is_the_user_s_own_redacted_and_follows_no_link(
    one: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = WatchLine(
        at="2026-01-01T00:00:00+00:00", stack=one.started.server.name, what="begins", reason="secret-token"
    )
    watch.log(line, redact=lambda text: text.replace("secret-token", "***"))
    file = tmp_path / "stacks" / line.stack / watch.LOG
    assert "secret-token" not in file.read_text()
    assert json.loads(file.read_text())["reason"] == "***"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    watch.log(line, redact=str)
    assert not (tmp_path / "elsewhere").exists()


def test_a_long_log_is_begun_anew(one: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_LOG", 10)
    for _ in range(2):
        watch.log(WatchLine(at="now", stack=one.started.server.name, what="begins"), redact=str)
    folder = tmp_path / "stacks" / one.started.server.name
    assert len((folder / "watch.log").read_text().splitlines()) == 1
    assert len((folder / "watch.log.1").read_text().splitlines()) == 1


def test_the_systemd_unit_quotes_what_it_is_given(tmp_path: Path) -> None:
    text = watch.unit(Path("/opt/my tools/gemmaspec"), ["a b", 'q"$%'])
    assert 'ExecStart="/opt/my tools/gemmaspec" "watch" "a b" "q\\"$$%%"' in text
    verify = subprocess.run(["sh", "-c", "command -v systemd-analyze"], capture_output=True, text=True, check=False)
    if verify.returncode == 0:
        file = tmp_path / "gemmaspec-watch.service"
        file.write_text(watch.unit(Path("/bin/true"), ["tiny-cpu"]))
        done = subprocess.run(
            shlex.split(f"systemd-analyze verify --user {file}"), capture_output=True, text=True, check=False
        )
        assert "gemmaspec-watch.service" not in done.stderr, done.stderr
