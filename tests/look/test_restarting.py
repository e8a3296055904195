"""Restarts that a watch asks for: side by side on different cores or GPUs, one after another on the same ones."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from gemmaspec.core.profile.load import load_profile, replica_of
from gemmaspec.look.places import ALL, Places, used_by_profile
from gemmaspec.run.engine import record
from gemmaspec.run.kept import stacks, verdicts
from tests.support import fake_runtime
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.real import free_port

GPU_0, GPU_1 = frozenset({"GPU 0"}), frozenset({"GPU 1"})


def test_what_a_server_computes_on_is_what_its_profile_names() -> None:
    two = load_profile("nvidia-31b-mtp", overrides=("replicas=2", "serve.tensor_parallel_size=2"))
    assert used_by_profile(replica_of(two, 2).profile) == {"GPU 2", "GPU 3"}
    assert used_by_profile(load_profile("nvidia-31b-mtp").profile) == {ALL}
    assert used_by_profile(load_profile("tiny-cpu", overrides=("cpus=[0-1]",)).profile) == {"core 0", "core 1"}
    assert used_by_profile(load_profile("tiny-cpu").profile) == {ALL}


@pytest.mark.parametrize(
    ("held", "wanted", "together"),
    [
        (GPU_0, GPU_1, True),
        (GPU_0, GPU_0, False),
        (GPU_0, GPU_0 | GPU_1, False),
        (frozenset({ALL}), GPU_1, False),
        (GPU_0, frozenset({ALL}), False),
    ],
)
def test_who_shares_a_gpu_waits(held: frozenset[str], wanted: frozenset[str], together: bool) -> None:
    places, entered, other = Places(), threading.Event(), None

    def enter() -> None:
        with places.taken(wanted):
            entered.set()

    with places.taken(held):
        other = threading.Thread(target=enter)
        other.start()
        assert entered.wait(5 if together else 0.3) == together
    other.join(10)
    assert entered.is_set()


@pytest.fixture
def both(fake: Fake) -> Iterator[Fake]:
    """Two servers on a core each, which `watch` restarts."""
    fake_runtime.make_models()
    for core, name in enumerate(("left", "right")):
        fake.profile(name, free_port())
        with (fake.profiles / f"{name}.yaml").open("a") as file:
            file.write(f"cpus: ['{core}']\nwatch: {{on_exit: restart}}\n")
        done = fake.run("up", name, "--engine", "process")
        assert done.code == 0, done.err
    yield fake
    for name in ("left", "right"):
        fake.run("down", name)


def kill(name: str) -> None:
    last = record.read(stacks.stack_folder(name) / "run")
    assert last
    assert last.pid
    os.kill(last.pid, signal.SIGKILL)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="this machine has one core")
def test_two_servers_on_different_cores_are_restarted_side_by_side(both: Fake) -> None:
    slow = {"FAKE_VLLM_SECONDS": "20"}
    watch = both.start("watch", "left", "right", "--interval", "0.2", "--json", env=slow)
    try:
        wait_for(lambda: verdicts.last_watch("left") and verdicts.last_watch("right"), seconds=60)
        kill("left")
        kill("right")
        wait_for(lambda: [stacks.find(name).outcome for name in ("left", "right")] == ["starting"] * 2, seconds=60)
        wait_for(lambda: [stacks.find(name).outcome for name in ("left", "right")] == ["ready"] * 2, seconds=120)
    finally:
        watch.send_signal(signal.SIGINT)
        out, _ = watch.communicate(timeout=60)
    assert "failed" not in [json.loads(line)["what"] for line in out.splitlines()]


def test_a_watch_that_ends_leaves_a_restart_to_its_end(both: Fake) -> None:
    watch = both.start("watch", "left", "--interval", "0.2", env={"FAKE_VLLM_SECONDS": "8"})
    wait_for(lambda: verdicts.last_watch("left"), seconds=60)
    kill("left")
    wait_for(lambda: stacks.find("left").outcome == "starting", seconds=60)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=60)
    assert watch.returncode == 130
    wait_for(lambda: stacks.find("left").outcome == "ready", seconds=90)
