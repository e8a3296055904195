"""Which running server a name or a number means."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.profile.takeover_running import Running
from gemmaspec.run.running import containers, processes


def running(asked: str) -> tuple[Running, Path]:
    """Return a running server, and the folder that its relative paths begin in.

    `asked` is the name or id of a container, or the pid of a process; a process in a container is read as the
    container. Raises UsageError where nothing of that name runs, or it serves nothing.
    """
    if asked.isdecimal() and processes.argv_of(int(asked)):
        pid = int(asked)
        inside = processes.container_of(pid)
        found = _container(inside) if inside else None
        if found:
            return (found, Path.cwd())
        return (processes.process(pid), processes.folder_of(pid))
    found = _container(asked)
    if found is None:
        raise UsageError(f"nothing runs under {asked!r:.80}{_what_runs()}", hint="docker ps    # or: pgrep -af vllm")
    return found, Path.cwd()


def _container(name: str) -> Running | None:
    """Return a container of this name; None if there is none, or no Docker."""
    if not _has_docker():
        return None
    return containers.container(name)


def _has_docker() -> bool:
    from gemmaspec.run.engine import endpoint

    where = endpoint.find()
    return where.remote or shutil.which("docker") is not None or Path(where.url.removeprefix("unix://")).exists()


def _what_runs() -> str:
    """Return the sentence about what could have been meant."""
    here = (None, processes.container_of(os.getpid()))
    serving = [f"process {pid}" for pid in processes.all_serving() if processes.container_of(pid) in here]
    try:
        serving += [f"container {name}" for name in containers.names()] if _has_docker() else []
    except EnvironmentMissing as error:
        return f"; {error.message}"
    return (
        f"; what runs: {', '.join(serving[:12])}" if serving else "; no container runs, and no process serves with vLLM"
    )
