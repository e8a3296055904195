"""A rolling change that ends in the middle: by Ctrl-C, by SIGTERM, and by kill -9 of the command itself.

Two replicas of the fake vLLM behind the real HAProxy. Whatever serves then gets requests, or `status` says that it does not.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.run.kept import groups, stack_lock, stacks
from gemmaspec.run.runtime.spec import router_program
from gemmaspec.serve.put_back import left_out
from tests.serve.test_replicas import _free_block
from tests.support import fake_runtime
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.stream_load import load

pytestmark = pytest.mark.skipif(
    not router_program(), reason="HAProxy is not installed (tools/setup-tests.sh installs it on Debian)"
)

PORT = _free_block()
ADDRESS = f"http://127.0.0.1:{PORT}/v1"
STILL = ("--set", "env.FAKE_VLLM_SECONDS=99")
"""A new configuration whose server does not answer for as long as a test takes."""
BOTH = {"two-1": "gets requests", "two-2": "gets requests"}


@pytest.fixture
def two(fake: Fake) -> Iterator[Fake]:
    """Two replicas that get requests; what the test leaves is stopped."""
    fake_runtime.make_models()
    fake.profile("two", PORT)
    with (fake.profiles / "two.yaml").open("a") as file:
        file.write("replicas: 2\nrouter: {drain_seconds: 30}\nwatch: {on_exit: restart}\n")
    done = fake.run("up", "two")
    assert done.code == 0, done.err
    yield fake
    fake.run("down", "two")


def routed(fake: Fake) -> tuple[int, dict[str, str]]:
    """What `status two` exits with, and to whom the router sends requests."""
    done = fake.run("status", "two", "--json")
    (router,) = json.loads(done.out)["routers"]
    return done.code, router["replicas"]


def doing(step: str) -> bool:
    """Whether a command does this step now."""
    holder = stack_lock.holder("two")
    return bool(holder) and holder is not None and holder.phase.startswith(step)


def starts(name: str) -> bool:
    """Whether a new server of a replica has been started, and does not answer yet."""
    with contextlib.suppress(Exception):
        started = stacks.find(name)
        return started.outcome == "starting" and stacks.look(started).status == "running"
    return False


def end(change: subprocess.Popen[str], by: signal.Signals) -> str:
    change.send_signal(by)
    _, said = change.communicate(timeout=60)
    assert "Traceback" not in said
    return said


def test_ctrl_c_while_the_first_replica_is_replaced_puts_it_back(two: Fake) -> None:
    change = two.start("up", "two", *STILL)
    wait_for(lambda: starts("two-1"), seconds=60)
    said = end(change, signal.SIGINT)
    assert change.returncode == 130, said
    assert "two-1: runs again as before" in said
    assert "two-2: unchanged" in said
    assert "2 of 2 replicas of two get requests" in said
    assert routed(two) == (0, BOTH)


def test_ctrl_c_while_the_second_replica_is_drained_says_which_one_runs_what(two: Fake) -> None:
    with load(ADDRESS, "model-two", clients=4, tokens=40) as streams:
        wait_for(lambda: streams.fates.total())
        change = two.start("up", "two", "--set", "env.A=1")
        wait_for(lambda: doing("drain two-2"), seconds=90)
        said = end(change, signal.SIGINT)
    assert change.returncode == 130, said
    assert "two-1: runs the new configuration" in said
    assert "two-2: unchanged" in said
    assert routed(two) == (0, BOTH)
    assert set(streams.fates) == {"whole"}, streams.reasons


def test_sigterm_stops_the_replica_that_starts_and_says_so(two: Fake) -> None:
    change = two.start("up", "two", *STILL)
    wait_for(lambda: starts("two-1"), seconds=60)
    said = end(change, signal.SIGTERM)
    assert "two-1: does not run" in said
    assert "two-2: unchanged" in said
    assert routed(two) == (1, {"two-1": "taken out", "two-2": "gets requests"})


def test_sigterm_while_a_replica_is_drained_puts_it_back(two: Fake) -> None:
    with load(ADDRESS, "model-two", clients=4, tokens=40) as streams:
        wait_for(lambda: streams.fates.total())
        change = two.start("up", "two", "--set", "env.A=1")
        wait_for(lambda: doing("drain two-1"), seconds=60)
        said = end(change, signal.SIGTERM)
    assert "two-1, two-2: unchanged" in said
    assert routed(two) == (0, BOTH)


def test_after_kill_9_a_replica_that_is_left_out_is_named_and_put_back_by_up(two: Fake) -> None:
    with load(ADDRESS, "model-two", clients=4, tokens=40) as streams:
        wait_for(lambda: streams.fates.total())
        change = two.start("up", "two", "--set", "env.A=1")
        wait_for(lambda: doing("drain two-1"), seconds=60)
        end(change, signal.SIGKILL)
    shown = two.run("status", "two")
    assert shown.code == 5, shown.out
    assert "router of two is degraded: two-1 serves, and gets no requests; next: gemmaspec up two" in shown.out
    assert two.run("status").code == 5
    assert left_out(groups.find("two")) == ["two-1"]
    assert two.run("up", "two").code == 0
    assert routed(two) == (0, BOTH)


def test_after_kill_9_a_start_that_nobody_waits_for_is_named_once_it_answers(two: Fake, tmp_path: Path) -> None:
    go = tmp_path / "go"
    change = two.start("up", "two", *STILL, "--set", f"env.FAKE_VLLM_GO={go}")
    wait_for(lambda: starts("two-1"), seconds=60)
    end(change, signal.SIGKILL)
    assert routed(two)[0] == 0, "it still starts"
    go.touch()
    wait_for(lambda: left_out(groups.find("two")) == ["two-1"], seconds=30)
    assert routed(two)[0] == 5
