"""A restart under load whose server is killed at a random moment always ends with a server.

The suite kills a fake a few times; `GEMMASPEC_TEST_KILLS=60 pytest -s tests/real/test_restart_kills.py` kills more often and prints
what became of each restart. GEMMASPEC_TEST_REAL_KILLS=5 does it to a real vLLM. GEMMASPEC_TEST_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gemmaspec.run.engine import record
from gemmaspec.run.kept.stacks import stack_folder
from tests.support import fake_runtime, real
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.real import Done, free_port
from tests.support.stream_load import load

KILLS = int(os.environ.get("GEMMASPEC_TEST_KILLS", "6"))
REAL_KILLS = int(os.environ.get("GEMMASPEC_TEST_REAL_KILLS", "0"))
SEED = int(os.environ.get("GEMMASPEC_TEST_SEED", str(random.randrange(10**6))))
LONGEST_S = 4.0
"""About how long a restart of the fake takes here with 3 streams; a longer one is killed early, a shorter one late."""
SLOW = {"FAKE_VLLM_LARGE": "1", "FAKE_VLLM_SECONDS": "0.5"}


@dataclass
class Killer:
    """Kills, at a moment, whichever server of a stack runs then."""

    name: str
    after_s: float
    hit: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Killer:
        self.thread = threading.Thread(target=self._kill)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _kill(self) -> None:
        if self.over.wait(self.after_s):
            return
        with contextlib.suppress(Exception):  # between two servers there is none to kill
            pid = _pid(self.name)
            os.kill(pid, signal.SIGKILL)
            self.hit.append(pid)


def _pid(name: str) -> int:
    found = record.read(Path(stack_folder(name)) / "run")
    assert found
    assert found.pid
    return found.pid


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200
    return False


def _end(done: Done, killer: Killer, port: int) -> str:
    """What a restart ended with. Fails if that is nothing, or if it is not what the command says."""
    serves = _answers(port)
    said = done.err[-3000:]
    if done.code == 0 and killer.hit and killer.hit[0] == _pid("killed"):
        return "the new server, killed after it had answered"
    assert serves, f"nothing runs after a kill at {killer.after_s:.2f} s, exit code {done.code}: {said}"
    if done.code == 0:
        return "the new server"
    assert "runs again as before" in said, said
    return "the earlier server, started again"


def _kill_restarts(run: Callable[..., Done], name: str, model: str, port: int, *, kills: int, longest_s: float) -> None:
    """Restart a server that streams to 3 clients, each time with a kill at a random moment."""
    chosen, ends = random.Random(SEED), Counter[str]()
    for number in range(1, kills + 1):
        with load(f"http://127.0.0.1:{port}/v1", model, clients=3, tokens=40, pause_s=0.1) as streams:
            wait_for(lambda streams=streams: streams.fates.total())
            with Killer(name, chosen.uniform(0, longest_s)) as killer:
                done = run("restart", name)
        end = _end(done, killer, port)
        ends[end] += 1
        print(f"{number}: at {killer.after_s:.2f} s: killed {len(killer.hit)}, {end}", flush=True)  # noqa: T201
        if not _answers(port):
            assert run("restart", name).code == 0
    print(f"seed {SEED}: {kills} restarts, {dict(ends)}")  # noqa: T201
    assert ends.total() == kills


def test_a_restart_under_load_that_is_killed_at_any_moment_ends_with_a_server(fake: Fake) -> None:
    fake_runtime.make_models()
    port = free_port()
    fake.profile("killed", port)
    run = functools.partial(fake.run, env=SLOW)
    assert run("up", "killed", "--engine", "process").code == 0
    try:
        _kill_restarts(run, "killed", "model-killed", port, kills=KILLS, longest_s=LONGEST_S)
    finally:
        run("down", "killed")


@pytest.mark.real_process
@pytest.mark.skipif(not REAL_KILLS, reason="each kill takes minutes; GEMMASPEC_TEST_REAL_KILLS says how many")
def test_so_does_one_of_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(real.STATE))
    started = real.up("process")
    assert started.code == 0, started.err
    took = started.json["seconds"]
    try:
        _kill_restarts(
            real.gemmaspec, real.PROFILE, started.json["model"], real.PORT, kills=REAL_KILLS, longest_s=took + 5
        )
    finally:
        real.gemmaspec("down", real.PROFILE)
