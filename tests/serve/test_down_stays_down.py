"""What `down` has stopped stays stopped beside a `watch` that may restart, also when `down` itself is interrupted.

The suite does it a few times; GEMMASPEC_TEST_DOWNS=50 does it more often.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.run.engine import proc, record
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.verdicts import last_watch
from gemmaspec.serve.restart_judged import LeftAlone, restart_judged
from tests.serve.test_up_faults import servers
from tests.support import fake_runtime
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.real import free_port

TIMES = int(os.environ.get("GEMMASPEC_TEST_DOWNS", "2"))
SEED = int(os.environ.get("GEMMASPEC_TEST_SEED", str(random.randrange(10**6))))
KINDS = ({}, {"FAKE_VLLM_STUBBORN": "1"}, {"FAKE_VLLM_LARGE": "1"})
"""A server that ends at once, one whose child has to be killed, and one that is slow to end."""


@pytest.fixture
def watched(fake: Fake) -> Iterator[Fake]:
    """A profile whose server `watch` restarts when it has exited."""
    fake_runtime.make_models()
    fake.profile("kept", free_port())
    with (fake.profiles / "kept.yaml").open("a") as file:
        file.write("watch: {on_exit: restart, most_restarts_per_hour: 12}\n")
    yield fake
    fake.run("down", "kept")


def begin(fake: Fake) -> subprocess.Popen[str]:
    """Begin to watch, and return once it has looked."""
    watch = fake.start("watch", "kept", "--interval", "0.2", "--json")
    wait_for(lambda: looked_after(0.0), seconds=60)
    return watch


def looked_after(moment: float) -> bool:
    seen = last_watch("kept")
    return seen is not None and seen.at > moment


def end(watch: subprocess.Popen[str]) -> list[str]:
    """End a watch, and return what each of its lines says."""
    watch.send_signal(signal.SIGINT)
    out, _ = watch.communicate(timeout=60)
    return [json.loads(line)["what"] for line in out.splitlines()]


def start(fake: Fake, kind: dict[str, str]) -> None:
    done = fake.run("up", "kept", "--engine", "process", "--set", "container.stop_grace_seconds=2", env=kind)
    assert done.code == 0, done.err


def test_down_stays_down_beside_a_watch(watched: Fake) -> None:
    chosen = random.Random(SEED)
    for number in range(max(TIMES, len(KINDS))):
        start(watched, KINDS[number % len(KINDS)])
        watch = begin(watched)
        try:
            time.sleep(chosen.uniform(0, 0.5))
            done = watched.run("down", "kept")
            assert done.code == 0, done.err
            time.sleep(2.5)  # more than ten looks
        finally:
            said = end(watch)
        assert "restarted" not in said, (SEED, number, said)
        assert stacks.find("kept").outcome == "stopped"
        assert servers() == [], (SEED, number)


@pytest.mark.parametrize("kind", [{"FAKE_VLLM_STUBBORN": "1"}])
def test_an_interrupted_down_says_what_it_left_and_stays_down(watched: Fake, kind: dict[str, str]) -> None:
    for _ in range(TIMES):
        done = watched.run("up", "kept", "--engine", "process", "--set", "container.stop_grace_seconds=20", env=kind)
        assert done.code == 0, done.err
        watch = begin(watched)
        down = watched.start("down", "kept")
        wait_for(lambda: stacks.find("kept").outcome == "stopping", seconds=30)
        wait_for(lambda: stacks.look(stacks.find("kept")).status == "exited", seconds=30)
        down.send_signal(signal.SIGINT)
        _, said = down.communicate(timeout=30)
        assert down.returncode == 130, said
        assert "kept was told to stop, and has not ended yet" in said
        shown = watched.run("status", "kept")
        assert (shown.code, "kept is stopping: down was interrupted" in shown.out) == (1, True), shown.out
        time.sleep(2.5)
        assert "restarted" not in end(watch)
        assert stacks.find("kept").outcome == "stopping"
        for process in record.members(record.read(stacks.stack_folder("kept") / "run")):  # type: ignore[arg-type]
            process.kill()
        shown = watched.run("status", "kept")
        assert (shown.code, "kept is stopped" in shown.out) == (1, True), shown.out
        assert watched.run("down", "kept").code == 0


def test_up_after_an_interrupted_down_starts_a_new_server(watched: Fake) -> None:
    start(watched, {})
    before = stacks.find("kept")
    stacks.save(dataclasses.replace(before, outcome="stopping"))
    assert watched.run("status", "kept", "--wait").code == 6
    start(watched, {})
    after = stacks.find("kept")
    assert after.outcome == "ready"
    assert after.since != before.since, "the one that may be ending is not joined"


def test_a_restart_is_left_undone_for_a_server_that_was_stopped_or_started_meanwhile(watched: Fake) -> None:
    start(watched, {})
    judged = stacks.find("kept")
    for now, said in (
        (dataclasses.replace(judged, outcome="stopping"), "was stopped meanwhile"),
        (dataclasses.replace(judged, outcome="stopped"), "was stopped meanwhile"),
        (dataclasses.replace(judged, since=1.0), "was started by somebody else meanwhile"),
    ):
        stacks.save(now)
        with pytest.raises(LeftAlone, match=said):
            restart_judged(judged, _Quiet(), overrides=(), no_spec=False, gate=lambda _: None)
    stacks.save(judged)
    assert len(servers()) == 1


class _Quiet:
    def note(self, text: str) -> None: ...

    def phase(self, *_: object) -> None: ...


def test_what_a_dead_server_left_behind_is_ended_before_it_is_started_again(watched: Fake) -> None:
    start(watched, {"FAKE_VLLM_STUBBORN": "1"})
    watch = begin(watched)
    last = record.read(stacks.stack_folder("kept") / "run")
    assert last
    assert last.pid
    try:
        os.kill(last.pid, signal.SIGKILL)
        log = stacks.stack_folder("kept") / "watch.log"
        wait_for(lambda: log.exists() and '"what": "restarted"' in log.read_text(), seconds=90)
        assert record.members(last) == []
    finally:
        said = end(watch)
    assert "restarted" in said


def test_another_boot_is_named(watched: Fake) -> None:
    start(watched, {})
    (server,) = servers()
    server.kill()
    run = stacks.stack_folder("kept") / "run"
    wait_for(lambda: stacks.look(stacks.find("kept")).status == "exited")
    other = "00000000-0000-0000-0000-000000000000"
    stacks.save(dataclasses.replace(stacks.find("kept"), boot_id=other))
    process = record.read(run)
    assert process
    assert process.boot_id == proc.boot_id()
    record.write(run, dataclasses.replace(process, boot_id=other))
    shown = watched.run("status", "kept")
    assert "kept is exited" in shown.out
    assert "this machine was booted again since it started" in shown.out
    assert "memory" not in shown.out


def test_a_disk_that_is_full_keeps_no_server_running(watched: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmaspec.serve.down import down

    start(watched, {})

    def full(_: object) -> None:
        raise GemmaspecError("No space left on device")

    monkeypatch.setattr(stacks, "save", full)
    assert down("kept")
    assert servers() == []
