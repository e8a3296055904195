"""Drive the installed command against real servers, as a user would.

Managed runtimes are made once, in .tools/state of the checkout, and found by every later run.
Everything else belongs to one run of the suite: its state folder, its profile, and through the profile's name its
Compose project, containers and volumes. So two runs do not meet, in one checkout or in two on one machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from gemmaspec.core.data import MODELS
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.runtime import ensure_runtime
from gemmaspec.run.runtime.managed import site_packages
from gemmaspec.serve.prepare import runtime_spec

RUN = secrets.token_hex(3)
"""Names this process's part of the suite; each worker of pytest-xdist has its own."""
TOOLS = Path(__file__).parent.parent.parent / ".tools"
SHARED = TOOLS / "state"
STATE = TOOLS / "runs" / RUN
PROFILE = f"tiny-{RUN}"
"""The profile tiny-cpu under this run's own name."""
PROJECT = f"gemmaspec-{PROFILE}"
"""Its Compose project."""
H1, H2, H3A = "kv-spec-uniform-valueerror", "kv-sharing-uniform-specs", "draft-text-only"
SHIPPED = (H1, H2, H3A, "cpu-expand-sampling", "cpu-top-k-no-rows")
"""The patches of the profile."""


def free_port() -> int:
    """Return a port to serve on.

    It is below those that the kernel gives to outgoing connections, one of which might take it between two starts.
    """
    for port in random.sample(range(20_000, 32_000), 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("50 ports are taken")


PORT = free_port()


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


def make_state() -> None:
    """Make this run's state folder, with links to what all runs share."""
    (STATE / "profiles").mkdir(parents=True)
    write_profile()
    (SHARED / "runtimes").mkdir(parents=True, exist_ok=True)
    (STATE / "runtimes").symlink_to(SHARED / "runtimes")


def write_profile(more: str = "", *, extends: str = "tiny-cpu") -> None:
    """Write the run's profile, with more YAML behind it."""
    (STATE / "profiles" / f"{PROFILE}.yaml").write_text(f"extends: {extends}\nname: {PROFILE}\n{more}")


def remove_state() -> None:
    """Remove it, and the volumes of its containers."""
    if (STATE / "stacks").is_dir() and docker_answers():
        for project in (f"gemmaspec-{folder.name}" for folder in (STATE / "stacks").iterdir()):
            subprocess.run(["docker", "compose", "-p", project, "down", "-v"], capture_output=True, check=False)
    shutil.rmtree(STATE, ignore_errors=True)


def cpu_python() -> Path:
    """The interpreter of tiny-cpu's runtime, which all runs share: in a test's own state folder it would be built anew."""
    with pytest.MonkeyPatch.context() as own:
        own.setenv("GEMMASPEC_STATE", str(STATE))
        return ensure_runtime(runtime_spec(load_profile("tiny-cpu")), progress=print)


def cpu_site() -> Path:
    """The site-packages of that runtime."""
    return site_packages(cpu_python())


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, with the run's own state folder and profile."""
    own = {"GEMMASPEC_STATE": str(STATE), "GEMMASPEC_PROFILES": str(STATE / "profiles")}
    return {**os.environ, **own, **(extra or {})}


def gemmaspec(*arguments: str, env: Mapping[str, str] | None = None, timeout: float = 900) -> Done:
    """Run `gemmaspec …` to its end."""
    command = [sys.executable, "-m", "gemmaspec", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(env), timeout=timeout, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def up(engine: str, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
    """`gemmaspec up` for the run's profile on one engine, on the run's port."""
    return gemmaspec("up", PROFILE, "--engine", engine, "--json", "--set", f"serve.port={PORT}", *arguments, env=env)


def patches(*ids: str) -> tuple[str, ...]:
    """`--set` for exactly these required patches."""
    return ("--set", f"patches.required=[{', '.join(ids)}]")


@cache
def docker_answers() -> bool:
    """Whether a Docker engine with Compose v2 is here."""
    if not shutil.which("docker"):
        return False
    asked = (["docker", "info"], ["docker", "compose", "version"])
    return all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in asked)


def containers(project: str = PROJECT) -> list[str]:
    """Return the ids of a Compose project's running containers."""
    listed = ["docker", "ps", "-q", "--no-trunc", "--filter", f"label=com.docker.compose.project={project}"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def begin(command: list[str]) -> subprocess.Popen[str]:
    """Begin a command in the run's environment."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def interrupt_when(command: list[str], said: str) -> Done:
    """Start `command`, press Ctrl-C once its stderr holds `said`, and wait for its end."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    assert process.stderr
    seen = []
    with process:
        for line in process.stderr:
            seen.append(line)
            if said in line:
                process.send_signal(signal.SIGINT)
                break
        try:
            out, rest = process.communicate(timeout=400)
        finally:
            process.kill()
    return Done(process.returncode, out, "".join(seen) + rest)


HOLDER = """
import os, sys, time

def hold(event, args):
    if event == "os.rename" and str(args[0]).endswith("overlay.new"):
        open(os.path.join(os.path.dirname(__file__), "held"), "w").close()
        time.sleep(600)

sys.addaudithook(hold)
"""
"""A sitecustomize that holds the launcher between a whole overlay and its name; what it cannot end ends after that."""


def kill_the_launcher(command: list[str], engine: str) -> Done:
    """Start `command`, kill -9 the launcher while it is held before its overlay gets its name, and wait for the end."""
    folder = STATE / "holder"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "sitecustomize.py").write_text(HOLDER)
    sets = {"env.PYTHONPATH": str(folder)}
    if engine == "docker":
        sets = {"env.PYTHONPATH": "/var/tmp", "caches.compile": str(folder)}  # the container has the folder there
    process = begin([*command, *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))])
    held = folder / "held"
    while process.poll() is None and not held.exists():
        time.sleep(0.02)
    launchers = [pid for pid in psutil.pids() if _is_launcher(pid)]
    for pid in launchers:
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=400)
    shutil.rmtree(folder)
    assert launchers, (out, err)
    return Done(process.returncode, out, err)


def _is_launcher(pid: int) -> bool:
    """Whether it is the launcher of this run's stack, which its command or, in a container, its mounts name."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if not any(word.endswith("/launch.py") for word in line) or "--plan" not in line or "docker" in line[0]:
            return False
        where = " ".join([*line, Path(f"/proc/{pid}/mountinfo").read_text()])
        return any(f"/{PROFILE}{end}" in where for end in "/ ")  # a file of its folder, or the folder
    return False


NO_DOCKER = pytest.mark.skipif(not docker_answers(), reason="no Docker engine with Compose v2 answers: make docker")
ENGINES = [
    pytest.param("process", marks=pytest.mark.real_process),
    pytest.param("docker", marks=[pytest.mark.real_docker, NO_DOCKER]),
]


def tiny_pair() -> Path:
    """The folder of the tiny models, as `up` copies them."""
    shutil.copytree(MODELS, STATE / "tiny", dirs_exist_ok=True)
    return STATE / "tiny"
