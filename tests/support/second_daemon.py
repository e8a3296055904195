"""A second, empty Docker daemon beside the machine's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import real

own_daemon = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("dockerd") or not real.docker_answers(),
    reason="only root can start a daemon, where docker is installed and allowed to run",
)


@contextlib.contextmanager
def second_daemon() -> Iterator[dict[str, str]]:
    """Yield the environment with which tools/setup-docker.sh starts it; it is stopped afterwards.

    It gets a network namespace of its own: a daemon without a bridge removes docker0, which is the first one's.
    """
    folder = Path("/run") / f"gemmaspec-test-{os.getpid()}"
    folder.mkdir()
    program = folder / "dockerd"
    program.write_text(f'#!/bin/sh\nexec unshare --net -- {shutil.which("dockerd")} "$@"\n')
    program.chmod(0o755)
    flags = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    try:
        yield {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKERD_LOG": str(folder / "log"),
            "DOCKERD_FLAGS": " ".join(map(str, [*flags, "--bridge=none", "--iptables=false", "--storage-driver=vfs"])),
        }
    finally:
        _stop(folder / "pid")
        shutil.rmtree(folder, ignore_errors=True)


def _stop(pid: Path) -> None:
    with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
        process = psutil.Process(int(pid.read_text()))
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
