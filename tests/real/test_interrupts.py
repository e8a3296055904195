"""Ctrl-C in a terminal, at a random moment of every long command: what ran before runs, or what was asked for.

So does kill -9 of the command itself, or of the server or the launcher that it starts or looks at.

The suite presses it a few times; GEMMASPEC_TEST_INTERRUPTS=40 does it more often and prints what became of each command.
GEMMASPEC_TEST_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from gemmaspec.run.kept import stacks
from tests.serve.test_up_faults import servers
from tests.support import fake_runtime
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.real import free_port

TIMES = int(os.environ.get("GEMMASPEC_TEST_INTERRUPTS", "9"))
SEED = int(os.environ.get("GEMMASPEC_TEST_SEED", str(random.randrange(10**6))))
UP = ("up", "pa", "--engine", "process")
SLOW = {"FAKE_VLLM_SECONDS": "0.7", "FAKE_VLLM_SILENT": "/v1/models"}
"""Half a second of a start to interrupt; bench and tune wait where they ask for the model."""
COMMANDS: Mapping[str, Sequence[str]] = {
    "up": UP,
    "change": (*UP, "--set", "serve.max_num_seqs=3"),
    "restart": ("restart", "pa"),
    "rollback": ("rollback", "pa"),
    "down": ("down", "pa"),
    "switch": ("up", "pb", "--engine", "process", "--instead-of", "pa"),
    "bench": ("bench", "pa", "--engine", "process", "--replace"),
    "tune": ("tune", "pa", "--engine", "process", "--replace", "--budget", "60s"),
    "watch": ("watch", "pa"),
    "wait": ("status", "pa", "--wait"),
    "top": ("top", "pa"),
    "logs": ("logs", "-f", "pa"),
}
IN_MAIN = """
import os, runpy, sys
begins = [int(sys.argv.pop(1))]
def looked(event, of):
    if begins and event == "import" and of[0] == "gemmaspec.cli.app":
        os.close(begins.pop())
sys.addaudithook(looked)
runpy.run_module("gemmaspec", run_name="__main__", alter_sys=True)
"""
"""`python -m gemmaspec` that closes the descriptor named before its words when the command begins: of Python's own start a
Ctrl-C always leaves a traceback."""
LOOKS = ("watch", "wait", "top", "logs")
"""Commands that change nothing."""
FOLLOW = ("watch", "top", "logs", "status", "bench", "tune")
"""Commands that may go on when a server has died, or that wait for one that does not answer."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return fake_runtime.installed(tmp_path_factory.mktemp("fake"))


def interrupted(fake: Fake, command: Sequence[str], after_s: float, folder: Path) -> tuple[int, str]:
    """Run a command in the foreground of a terminal, press Ctrl-C after so many seconds, and return how it ended."""
    begun, begins = os.pipe()
    pid, terminal = pty.fork()
    if not pid:  # pragma: no cover
        os.chdir(folder)
        os.set_inheritable(begins, True)
        os.execve(sys.executable, [sys.executable, "-c", IN_MAIN, str(begins), *command], fake.environment(SLOW))
    os.close(begins)
    os.read(begun, 1)
    os.close(begun)
    said, press, until = b"", time.monotonic() + after_s, time.monotonic() + 90
    pressed = False
    with contextlib.suppress(OSError):  # the terminal has no reader any more
        while time.monotonic() < until:
            if not pressed and time.monotonic() >= press:
                os.write(terminal, b"\x03")
                pressed = True
            if select.select([terminal], [], [], 0.02)[0]:
                said += os.read(terminal, 65536)
    if time.monotonic() >= until:
        os.kill(pid, 9)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return code, said.decode(errors="replace")


def prepare(fake: Fake, name: str) -> None:
    """Let pa run, with an earlier stack to go back to; or nothing, for `up`."""
    for stack in ("pa", "pb"):
        fake.run("down", stack)
    if name == "up":
        return
    if name == "rollback":
        assert fake.run(*UP, "--set", "serve.max_num_seqs=2").code == 0
    done = fake.run(*UP)
    assert done.code == 0, done.err


def test_ctrl_c_at_any_moment_leaves_the_old_state_or_the_new_one(place: Fake, tmp_path: Path) -> None:
    fake_runtime.make_models()
    for name in ("pa", "pb"):
        place.profile(name, free_port())
    chosen = random.Random(SEED)
    names = [name for _ in range(1 + TIMES // len(COMMANDS)) for name in chosen.sample(sorted(COMMANDS), len(COMMANDS))]
    try:
        for number, name in enumerate(names[:TIMES]):
            prepare(place, name)
            before = {process.pid for process in servers()}
            after_s = chosen.uniform(0.0, 4.0)
            code, said = interrupted(place, COMMANDS[name], after_s, tmp_path)
            end = check(place, name, code, said, before)
            print(f"{number}: {name} at {after_s:.2f} s: exit {code}, {end}", flush=True)  # noqa: T201
    finally:
        print(f"seed {SEED}")  # noqa: T201
        for name in ("pa", "pb"):
            place.run("down", name)
            shutil.rmtree(stacks.stack_folder(name), ignore_errors=True)


def killed(fake: Fake, command: Sequence[str], after_s: float, folder: Path, victim: str) -> tuple[int, str]:
    """Run a command, end it or every server by SIGKILL after so many seconds, and return how the command ended."""
    said = folder / "said"
    with said.open("w") as file:
        running = subprocess.Popen(
            [sys.executable, "-m", "gemmaspec", *command],
            stdout=file,
            stderr=file,
            cwd=folder,
            env=fake.environment(SLOW),
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(after_s)
        if victim == "command":
            running.kill()
        for server in servers() if victim == "server" else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                server.kill()
        try:
            code = running.wait(60 if victim == "server" and command[0] not in FOLLOW else 3)
        except subprocess.TimeoutExpired:
            assert command[0] in FOLLOW, f"seed {SEED}: {command} hangs: {said.read_text()}"
            running.kill()
            code = running.wait()
    return code, said.read_text()


def test_a_kill_at_any_moment_leaves_what_the_next_command_mends(place: Fake, tmp_path: Path) -> None:
    fake_runtime.make_models()
    for name in ("pa", "pb"):
        place.profile(name, free_port())
    chosen = random.Random(SEED)
    try:
        for number in range(TIMES):
            name, victim = chosen.choice(sorted(COMMANDS)), chosen.choice(("command", "command", "server"))
            prepare(place, name)
            after_s = chosen.uniform(0.1, 4.0)
            code, said = killed(place, COMMANDS[name], after_s, tmp_path, victim)
            shown = f"seed {SEED}, {name}, {victim} killed at {after_s:.2f} s, exit {code}: {said[-3000:]}"
            print(f"{number}: {shown.partition(': ')[0]}", flush=True)  # noqa: T201
            assert "Traceback" not in said, shown
            mended(place, shown)
    finally:
        print(f"seed {SEED}")  # noqa: T201
        for name in ("pa", "pb"):
            place.run("down", name)
            shutil.rmtree(stacks.stack_folder(name), ignore_errors=True)


def looked() -> list[stacks.Started]:
    """The stacks that are said to run."""
    return [stack for stack in stacks.started_stacks() if stacks.look(stack).status == "running"]


def mended(fake: Fake, shown: str) -> None:
    """Fail unless `status` tells what runs, `up` serves and `down` leaves nothing."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: len(looked()) == len(servers()) <= 1, seconds=20)  # what was killed takes time to end
    recorded = [stack.server.name for stack in looked()]
    assert len(recorded) == len(servers()) <= 1, (shown, recorded, servers())
    used = recorded[0] if recorded else "pa"
    assert fake.run("status").code in (0, 1, 5), shown
    done = fake.run("up", used, "--engine", "process")
    assert done.code == 0, (shown, done.err)
    assert [stacks.look(stacks.find(used)).status, len(servers())] == ["running", 1], shown
    assert fake.run("down", used).code == 0, shown
    assert servers() == [], shown


def check(fake: Fake, name: str, code: int, said: str, before: set[int]) -> str:
    """Return what runs now. Fails if that is neither what ran nor what was asked for, or the next command fails."""
    shown = f"seed {SEED}, {name}, exit {code}: {said[-3000:]}"
    assert "Traceback" not in said, shown
    assert code in ((0, 130, -2) if name != "bench" else (0, 1, 130)), shown  # -2: a shell says 130
    wait_for(lambda: len(servers()) == len(looked()) <= 1, seconds=20)  # no orphan; a killed process takes time to end
    running = servers()
    if name in LOOKS:
        assert {process.pid for process in running} == before, shown
    end = "nothing runs" if not running else "the old one" if running[0].pid in before else "a new one"
    recorded = looked()
    assert len(recorded) == len(running), shown
    if name in ("change", "switch", "restart", "rollback"):
        assert running, shown
    used = "pb" if recorded and recorded[0].server.name == "pb" else "pa"
    known = any(stack.server.name == used for stack in stacks.started_stacks())  # a first `up` may have begun nothing
    assert fake.run("status", used).code in ((0, 1) if known else (2,)), shown
    done = fake.run("up", used, "--engine", "process")
    assert done.code == 0, (shown, done.err)
    return end
