"""What /proc holds of a process that serves, and the processes around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.profile.takeover_running import Running, not_served
from gemmaspec.core.profile.takeover_shell import serves
from gemmaspec.run.engine import proc
from gemmaspec.run.trees.versions import installed_vllm

_PROC: Final = Path("/proc")
_MOST: Final = 2**21
"""Bytes of a command line or an environment; Linux itself allows 2 MiB for both."""
_CONTAINER: Final = re.compile(
    r"(?:docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{64})|/([0-9a-f]{64})(?:\.scope)?$", re.M
)


def process(pid: int) -> Running:
    """Return how a process that serves was started; of a script, the server that it started.

    Raises UsageError if it serves nothing, and EnvironmentMissing where another user's process may not be read.
    """
    called = f"process {pid}"
    if not argv_of(pid):
        raise UsageError(f"there is no process {pid}, or it has no command line", hint="pgrep -af vllm")
    server = serving_among([pid, *below(pid)]) or serving_among(above(pid))
    if server is None:
        raise not_served(called, argv_of(pid))
    words = argv_of(server)
    python = interpreter(server, words)
    return Running(
        called=f"process {server}",
        argv=words,
        exact=True,
        environment=environment_of(server),
        release=installed_vllm(python) if python else None,
        python=str(python) if python else None,
    )


def folder_of(pid: int) -> Path:
    """Return the folder that a process's relative paths begin in; this one's own where it may not be read."""
    try:
        return (_PROC / str(pid) / "cwd").readlink()
    except OSError:
        return Path.cwd()


def argv_of(pid: int) -> tuple[str, ...]:
    """Return the words of a process; none if it has ended, and for threads of the kernel."""
    return tuple(_strings(pid, "cmdline"))


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with. Raises EnvironmentMissing where it may not be read."""
    try:
        texts = _strings(pid, "environ", hidden_is_empty=False)
    except PermissionError:
        raise EnvironmentMissing(
            f"process {pid} belongs to another user, and this user may not read its variables",
            hint=f"sudo -u '#{_PROC.joinpath(str(pid)).stat().st_uid}' gemmaspec profile new NAME --from-running {pid}",
        ) from None
    return dict(text.partition("=")[::2] for text in texts if "=" in text)


def container_of(pid: int) -> str | None:
    """Return the id of the container that a process runs in; None for one of the machine itself."""
    try:
        text = (_PROC / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _CONTAINER.search(text)
    if found:
        return found[1] or found[2]
    return None


def serving_among(pids: list[int]) -> int | None:
    """Return the first of some processes whose words are those of a vLLM server."""
    return next((pid for pid in pids if serves(argv_of(pid))), None)


def all_serving() -> list[int]:
    """Return the processes of this machine that serve with vLLM, those of containers included."""
    return [pid for pid in _pids() if serves(argv_of(pid))]


def below(pid: int) -> list[int]:
    """Return the descendants of a process, the nearest first."""
    parents = {one: _parent(one) for one in _pids()}
    found: list[int] = []
    generation = [pid]
    while generation:
        generation = [one for one, parent in parents.items() if parent in generation]
        found += generation
    return found


def above(pid: int) -> list[int]:
    """Return the ancestors of a process, the nearest first."""
    found: list[int] = []
    while (parent := _parent(pid)) is not None and parent > 0:
        found.append(parent)
        pid = parent
    return found


def _pids() -> Iterator[int]:
    return (int(folder.name) for folder in _PROC.iterdir() if folder.name.isdecimal())


def _parent(pid: int) -> int | None:
    """Return the pid of a process's parent; None if the process has ended or may not be seen."""
    try:
        fields = proc.stat(pid)
    except (OSError, EnvironmentMissing):
        return None
    if fields:
        return int(fields[1])
    return None


def _strings(pid: int, file: str, *, hidden_is_empty: bool = True) -> list[str]:
    """Return the texts of /proc/PID/cmdline or environ, which end with a zero byte each."""
    try:
        with (_PROC / str(pid) / file).open("rb") as opened:
            read = opened.read(_MOST)
    except PermissionError:
        if hidden_is_empty:
            return []
        raise
    except OSError:
        return []  # it has ended
    return read.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode("utf-8").split("\0")[:-1]


def interpreter(pid: int, words: tuple[str, ...]) -> Path | None:
    """Return the Python of a process by the path it was started with, which a virtual environment is found by."""
    first = Path(words[0])
    if first.name.startswith("python") and first.is_absolute():
        return first
    program = next((Path(word) for word in words[:3] if word.endswith("/bin/vllm")), None)
    if program and program.is_absolute():
        return program.with_name("python")
    folder = folder_of(pid)
    if "/" in words[0] and first.name.startswith("python"):
        return folder / first
    return None
