"""A server that the kernel kills because memory ran out: what `status`, `logs` and `watch` say of it.

The memory is that of a control group, in which a real process allocates until the kernel kills it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.files import state_dir
from gemmaspec.core.live.reaction import Policy
from gemmaspec.look import hooks, watch
from gemmaspec.look.watch import Watched
from gemmaspec.run.engine import memory_kills, proc
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.process import _starved
from gemmaspec.run.engine.record import Record
from gemmaspec.run.engine.server import Server, State
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.kept.verdicts import last_watch
from gemmaspec.run.ready.death import death
from gemmaspec.run.ready.failed import Ended, failed_start
from tests.support import fake_runtime
from tests.support.docker_support import IMAGE, make_image, stack, wait_for
from tests.support.fake_runtime import Fake
from tests.support.real import NO_DOCKER, free_port

LIMIT = 64 * 1024**2
GROUPS = Path("/sys/fs/cgroup")
SAYS = "memory ran out: the kernel has killed"
RAN_OUT = f"{SAYS} a process of its container"


@contextlib.contextmanager
def little_memory() -> Iterator[Path]:
    """Make a control group with LIMIT bytes of memory, of either version; yield the file that takes a pid."""
    root, limit = (
        (GROUPS / "memory", "memory.limit_in_bytes") if (GROUPS / "memory").is_dir() else (GROUPS, "memory.max")
    )
    group = root / f"gemmaspec-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error.strerror}")
    try:
        yield group / "cgroup.procs"
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    fake = fake_runtime.installed(tmp_path_factory.mktemp("fake"))
    fake_runtime.make_models()
    yield fake
    fake.run("down", "leaks")


def leader() -> int:
    return int(json.loads((state_dir() / "stacks" / "leaks" / "run" / "process.json").read_text())["pid"])


def test_a_leak_that_the_kernel_ends_is_named_with_the_next_command(fake: Fake, tmp_path: Path) -> None:
    fake.profile("leaks", free_port())
    go = tmp_path / "go"
    up = fake.run("up", "leaks", "--engine", "process", env={"FAKE_VLLM_GROWS": str(go)})
    assert up.code == 0, up.err
    assert fake.run("logs", "leaks").err == ""
    with little_memory() as group, fake.start("watch", "leaks", "--interval", "0.2", "--json") as watch:
        wait_for(lambda: last_watch("leaks"), seconds=60)
        group.write_text(str(leader()))
        go.touch()
        assert watch.stdout
        gone = next(line for line in map(json.loads, watch.stdout) if line["fault"] == "gone")
        wait_for(lambda: (seen := last_watch("leaks")) and seen.starved)
        watch.terminate()
        watch.communicate(timeout=60)
    assert f"the server has exited: {SAYS} " in gone["reason"]
    assert gone["reason"].endswith("; next: gemmaspec restart leaks")
    (seen,) = json.loads(fake.run("status", "leaks", "--json").out)["stacks"]
    assert seen["state"] == "exited"
    assert seen["cause"].startswith(SAYS)
    assert "serve.gpu_memory_utilization" in seen["fix"]
    assert f"leaks has exited: {SAYS} " in (logs := fake.run("logs", "leaks").err)
    assert logs.rstrip().endswith("next: gemmaspec restart leaks")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 7\noom 2\noom_kill {}\noom_group_kill 0\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
def test_only_what_the_kernel_killed_of_its_own_group_is_a_cause(name: str, text: str, tmp_path: Path) -> None:
    group = tmp_path / name
    group.write_text(text.format(3))
    assert memory_kills.group_kills(group) == 3
    before = Record(
        stack="x", nonce="n", boot_id=proc.boot_id(), since_ticks=0, command=(), group=str(group), group_kills=3
    )
    assert _starved(before) == "", "whatever was killed elsewhere on this machine meanwhile"
    group.write_text(text.format(4))
    assert _starved(before).startswith(f"{SAYS} 1 process of its control group")
    assert _starved(dataclasses.replace(before, boot_id="another")) == ""
    assert _starved(dataclasses.replace(before, group_kills=None)) == ""
    group.unlink()
    assert _starved(before) == "", "the group is gone, and with it what is known"


def test_a_kill_elsewhere_is_no_cause_and_one_in_that_moment_is(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    count = [7]
    monkeypatch.setattr(watch, "memory_kills", lambda: count[0])
    server = Server(name="leaks", folder=Path("/nonexistent"), port=1, model="m", speculates=False)
    started = Started(engine="process", server=server, profile="tiny-cpu")
    seen = Watched(started=started, policy=Policy(), tellers=hooks.Tellers((), None), kills=deque([7, 7]))
    assert watch._starved(seen) == ""
    count[0] = 8
    assert watch._starved(seen) == f"{SAYS} a process of this machine in that moment"
    container = dataclasses.replace(seen, started=dataclasses.replace(started, engine="docker"))
    assert watch._starved(container) == "", "Docker says so itself"


def test_a_killed_container_is_not_said_to_have_starved() -> None:
    found = death([], exit_code=137)
    assert "nothing here shows which" in found.why
    assert "gpu_memory_utilization" not in str(found.fix)


@pytest.mark.parametrize("exit_code", [None, 0, 1, 137])
def test_memory_explains_what_the_log_does_not(exit_code: int | None) -> None:
    core = "(APIServer pid=1) WARNING 11-23 06:21:50 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly"
    for said in ([], [core]):
        found = death(said, exit_code=exit_code, starved=RAN_OUT)
        assert found.why == RAN_OUT
        assert found.fix
    assert "IndexError" in death(["IndexError: x"], exit_code=exit_code, starved=RAN_OUT).why
    if exit_code != 137:
        assert "told to stop" in death(["INFO:     Shutting down"], exit_code=exit_code, starved=RAN_OUT).why


def test_a_start_that_the_kernel_ends_says_so() -> None:
    state = State(status="exited", exit_code=1, starved=RAN_OUT)
    ended = Ended(name="x", phase="loading target", seconds=3, state=state, lines=["gemmaspec: ok, starting vllm"])
    error = failed_start(ended)
    assert RAN_OUT in error.message
    assert "serve.gpu_memory_utilization" in (error.hint or "")


@pytest.mark.real_docker
@NO_DOCKER
def test_docker_says_it_of_a_container_with_a_limit(tmp_path: Path) -> None:
    engine = DockerEngine()
    make_image(engine._client)
    grows = "x=0123456789abcdef; while :; do x=$x$x; done"
    server = stack(tmp_path / f"test-{uuid.uuid4().hex[:8]}", f"{grows} & wait; exit 0", mem_limit="32m", image=IMAGE)
    try:
        engine.start(server)
        wait_for(lambda: engine.state(server).status == "exited")
        state = engine.state(server)
        assert state.exit_code == 0, "as vLLM's API server ends after its engine"
        assert death(list(engine.logs(server)), exit_code=0, starved=state.starved).why == RAN_OUT
    finally:
        engine.stop(server)
        engine.close()
