"""`watch` beside a router: one that has died, one that hangs, and one that leaves out a replica that serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gemmaspec.run.engine import record
from gemmaspec.run.engine import router as routers
from gemmaspec.run.kept import groups, stack_lock, stacks, verdicts
from gemmaspec.run.runtime.spec import router_program
from gemmaspec.serve.put_back import left_out
from tests.serve.test_replicas import _free_block
from tests.serve.test_rolling_interrupts import starts
from tests.support import fake_runtime
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.stream_load import load

pytestmark = pytest.mark.skipif(
    not router_program(), reason="HAProxy is not installed (tools/setup-tests.sh installs it on Debian)"
)

PORT = _free_block()
ADDRESS = f"http://127.0.0.1:{PORT}/v1"


@pytest.fixture
def routed(fake: Fake) -> Iterator[Fake]:
    fake_runtime.make_models()
    fake.profile("duo", PORT)
    with (fake.profiles / "duo.yaml").open("a") as file:
        file.write("replicas: 2\nrouter: {drain_seconds: 30}\n")
    yield fake
    fake.run("down", "duo")


def start(fake: Fake, *wishes: str) -> subprocess.Popen[str]:
    """Start both replicas, and begin to watch."""
    done = fake.run("up", "duo", *(word for wish in wishes for word in ("--set", f"watch.{wish}")))
    assert done.code == 0, done.err
    watch = fake.start("watch", "duo", "--interval", "0.2", "--json")
    wait_for(lambda: verdicts.last_watch("duo"), seconds=60)
    return watch


def until(what: str, seconds: float = 60) -> dict[str, object]:
    """Wait for a line of the watch about the router."""
    log = stacks.stack_folder("duo") / "watch.log"

    def found() -> list[dict[str, object]]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in map(json.loads, lines) if line["what"] == what]

    wait_for(found, seconds=seconds)
    return found()[-1]


def end(watch: subprocess.Popen[str]) -> None:
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=60)
    (stacks.stack_folder("duo") / "watch.log").unlink(missing_ok=True)
    (stacks.stack_folder("duo") / verdicts.WATCH).unlink(missing_ok=True)


def router_pid() -> int:
    last = record.read(groups.find("duo").router.folder)
    assert last
    assert last.pid
    return last.pid


def serves() -> bool:
    return routers.serving(groups.find("duo").router) == ""


def test_a_dead_router_is_named_and_started_again_where_that_is_allowed(routed: Fake) -> None:
    watch = start(routed, "on_exit=restart")
    try:
        with load(ADDRESS, "model-duo", clients=2, tokens=5) as streams:
            wait_for(lambda: streams.fates.total())
            began = time.monotonic()
            os.kill(router_pid(), signal.SIGKILL)
            wait_for(serves, seconds=60)
            took = time.monotonic() - began
        assert (until("begins")["fault"], until("repaired")["fault"]) == ("router gone", "router gone")
        assert until("repaired")["reason"] == "router started, duo-1 put back, duo-2 put back"
        until("ends")
        assert took < 10, took
        shown = routed.run("status", "duo")
        assert shown.code == 0, shown.out
        assert "router gone: router started" in shown.out
    finally:
        end(watch)


def test_a_dead_router_is_only_named_where_nothing_else_is_allowed(routed: Fake) -> None:
    watch = start(routed)
    try:
        os.kill(router_pid(), signal.SIGKILL)
        assert until("begins")["fault"] == "router gone"
        time.sleep(1)
        assert routers.state(groups.find("duo").router).status == "exited"
        assert "watch     router gone since" in routed.run("status", "duo").out
        assert routed.run("up", "duo").code == 0
        until("ends")
    finally:
        end(watch)


def test_a_router_that_hangs_is_named_by_its_silence(routed: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = start(routed, "on_hang=restart")
    try:
        stopped = router_pid()
        os.kill(stopped, signal.SIGSTOP)
        began = until("begins")
        assert began["fault"] == "router silent"
        assert "no answer within 10 s" in str(began["reason"])
        assert "None" not in str(began["reason"])
        until("repaired")
        assert router_pid() != stopped
        assert serves()
    finally:
        end(watch)


def test_a_replica_that_a_killed_command_has_left_out_is_put_back(routed: Fake, tmp_path: Path) -> None:
    watch = start(routed)
    try:
        go = tmp_path / "go"
        slow = ("env.FAKE_VLLM_SECONDS=99", f"env.FAKE_VLLM_GO={go}")
        change = routed.start("up", "duo", *(word for value in slow for word in ("--set", value)))
        wait_for(lambda: starts("duo-1"), seconds=60)
        change.kill()
        change.communicate()
        wait_for(lambda: stack_lock.holder("duo") is None)
        go.touch()
        done = until("repaired")
        assert (done["fault"], done["reason"]) == ("left out", "duo-1 put back")
        assert left_out(groups.find("duo")) == []
        assert stacks.find("duo-1").outcome == "ready"
        assert "watch (pid" in groups.last_audit(groups.find("duo"))[-1]
    finally:
        end(watch)


def test_down_of_a_group_stays_down_beside_a_watch(routed: Fake) -> None:
    watch = start(routed, "on_exit=restart")
    try:
        assert routed.run("down", "duo").code == 0
        time.sleep(2)
        group = groups.find("duo")
        assert group.stopped
        assert routers.state(group.router).status == "absent"
        states = [stacks.look(stacks.find(name)).status for name in group.members]
        assert states == ["absent", "absent"]
    finally:
        end(watch)


def test_prometheus_scrapes_the_router(routed: Fake) -> None:
    end(start(routed))
    group = groups.find("duo")
    for words in (("duo",), ()):
        jobs = yaml.safe_load(routed.run("connect", "prometheus", *words).out)["scrape_configs"]
        (job,) = [one for one in jobs if one["job_name"] == "gemmaspec-router"]
        target = {"targets": [f"127.0.0.1:{group.router.metrics_port}"], "labels": {"router": "duo"}}
        assert target in job["static_configs"]
    routed.run("down", "duo")
    jobs = yaml.safe_load(routed.run("connect", "prometheus").out)["scrape_configs"]
    assert not [one for one in jobs if one["job_name"] == "gemmaspec-router"]
