"""Identify the processes of a stack: by a record that a reused pid cannot match, and by a marker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from gemmaspec.core import records
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import UnreadableFile
from gemmaspec.run.engine.proc import boot_id, start_ticks, stat

MARKER: Final = "GEMMASPEC_STACK"
"""The variable that every process of a stack carries in its environment."""

_FILE: Final = "process.json"
_KILL_WAIT_S: Final = 10.0
_POLL_S: Final = 0.05


class NotPermitted(GemmaspecError):
    """The server belongs to another user, who alone may end it. Nothing of it was ended."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The facts about the last start, written before the process exists and again with its pid."""

    stack: str
    nonce: str
    """Random, so that no other process has the same marker."""
    boot_id: str
    since_ticks: int
    """Clock ticks from boot to the writing of this record; older processes do not belong to the start."""
    command: tuple[str, ...]
    """The command for a person to read, without API keys."""
    pid: int | None = None
    """The leader of the session; None while it is being started."""
    start_ticks: int | None = None
    """Clock ticks from boot to the leader's start, which do not depend on the system's clock."""
    host: str = ""
    """The name of the machine or container that started it; "" in a record of an earlier gemmaspec."""
    namespace: str = ""
    """The namespace of its pids, such as pid:[4026531836]; in another one they mean other processes."""
    machine: str = ""
    """The machine-id of its system, which stays through a boot; "" where there is none, or in an earlier record."""
    group: str = ""
    """The file in which the kernel counts what it kills of the server's control group for memory; "" without one."""
    group_kills: int | None = None
    """That count when the server was started; None if it is not known."""
    schema: Literal[1] = 1

    @property
    def elsewhere(self) -> str | None:
        """Where it was started, if that is another machine or container than this one.

        The boot and the namespace of the pids decide: a machine may get another name while its servers run.
        """
        if not self.host:
            return None
        if self.boot_id == boot_id():
            if self.namespace == namespace():
                return None
            return f"another container or pid namespace of {self.host} ({self.namespace})"
        if self.host == platform.node() or (self.machine and self.machine == machine_id()):
            return None  # this machine, before it was booted again
        return f"the host {self.host}"

    @property
    def marker(self) -> str:
        """The value of MARKER in the environment of this stack's processes."""
        return f"{self.stack}:{self.nonce}"


def machine_id() -> str:
    """Return the id that systemd gave this installation; "" where there is none."""
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    return ""


def namespace() -> str:
    """Return the namespace of this process's pids; "" where that cannot be read."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def write(run_dir: Path, record: Record) -> None:
    """Write `record` atomically. Raise EnvironmentMissing if that fails."""
    records.write(run_dir / _FILE, record, mode=0o600)


def read(run_dir: Path) -> Record | None:
    """Return the record of the last start; None if it is missing. Raise UnreadableFile if it is damaged."""
    file = run_dir / _FILE
    record = records.read(Record, file)
    if record is None:
        return None
    numbers = (record.pid, record.start_ticks)
    sound = numbers == (None, None) or all(number is not None and number > 1 for number in numbers)
    if not (sound and record.stack and record.nonce and record.boot_id):
        raise UnreadableFile(file, "it is damaged")
    return record


def last_in(run_dir: Path) -> Record | None:
    """Return the record of the last start with its leader; None if it is missing. Raise as `read`."""
    last = read(run_dir)
    if last:
        return completed(last)
    return None


def completed(record: Record) -> Record:
    """Return the record with its leader, in case the starting command was killed before it recorded the pid."""
    if record.pid is None:
        for process in members(record):
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == process.pid:
                    return dataclasses.replace(record, pid=process.pid, start_ticks=start_ticks(process.pid))
    return record


def rescued(stack: str, leader: int) -> Record | None:
    """Return a lost record of `stack`, restored from its leader's environment; None if that is not its leader."""
    with contextlib.suppress(psutil.Error, OSError):
        name, _, nonce = psutil.Process(leader).environ().get(MARKER, "").partition(":")
        began = start_ticks(leader)
        if name == stack and nonce and began and os.getsid(leader) == leader:
            return Record(
                stack=stack,
                nonce=nonce,
                boot_id=boot_id(),
                since_ticks=began,
                command=without_key(tuple(psutil.Process(leader).cmdline())),
                pid=leader,
                start_ticks=began,
            )
    return None


def without_key(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that is safe to store: the value of --api-key is replaced by ***."""
    hidden = ["***" if before == "--api-key" else now for before, now in zip(("", *command), command, strict=False)]
    return tuple("--api-key=***" if word.startswith("--api-key=") else word for word in hidden)


def forget(run_dir: Path) -> None:
    """Remove the record if it exists; a folder in its place stays."""
    with contextlib.suppress(IsADirectoryError, PermissionError):
        (run_dir / _FILE).unlink(missing_ok=True)


def leads(record: Record) -> bool:
    """Return whether the recorded leader is alive: same boot, same pid, same start time, not a zombie."""
    if record.pid is None or record.boot_id != boot_id():
        return False
    fields = stat(record.pid)
    return bool(fields) and fields[0] not in ("Z", "X") and int(fields[19]) == record.start_ticks


def members(record: Record) -> list[psutil.Process]:
    """Return the living processes of a start: its leader, and those in its session with its marker.

    vLLM's engine and worker processes outlive a killed leader and keep its session and marker.
    """
    if record.boot_id != boot_id():
        return []
    never = _own_line()
    # Not psutil.process_iter, which caches objects of processes whose pid was reused since.
    young = [pid for pid in psutil.pids() if pid not in never and _young_enough(pid, record)]
    return [process for pid in young if (process := _belonging(pid, record))]


def _young_enough(pid: int, record: Record) -> bool:
    ticks = start_ticks(pid)
    return ticks is not None and ticks >= record.since_ticks


def _own_line() -> set[int]:
    """Return init, this process and its parents, which are never members, whatever a record or a marker says."""
    line = {1, os.getpid()}
    pid = os.getppid()
    while pid > 1:
        line.add(pid)
        fields = stat(pid)
        pid = int(fields[1]) if fields else 0
    return line


def _belonging(pid: int, record: Record) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if pid == record.pid:
            if leads(record):
                return process
            return None
        if (
            record.pid in (None, os.getsid(pid))
            and process.environ().get(MARKER) == record.marker
            and process.status() != psutil.STATUS_ZOMBIE
        ):
            return process
    return None


def end(record: Record, *, grace_s: float) -> bool:
    """End every process of a start; return True if there was one.

    The leader is terminated first, so that it can shut its children down in order, then the remaining processes. After
    `grace_s` seconds all are killed. Raise NotPermitted if this user may not end them, GemmaspecError if one survives.
    """
    asked: set[int] = set()
    any_found = False
    deadline = time.monotonic() + grace_s
    while left := members(record):
        any_found = True
        now = time.monotonic()
        if now > deadline + _KILL_WAIT_S:
            raise GemmaspecError(f"could not kill {describe(left)}", hint="ps -eo pid,stat,wchan,args")
        with _permission(left):
            if now >= deadline:
                _kill(left)
            else:
                leader = [process for process in left if process.pid == record.pid]
                asked |= _ask([process for process in leader or left if process.pid not in asked])
        time.sleep(_POLL_S)
    return any_found


def _ask(processes: list[psutil.Process]) -> set[int]:
    done = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
        done.add(process.pid)
    return done


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def _permission(processes: list[psutil.Process]) -> Iterator[None]:
    try:
        yield
    except psutil.AccessDenied:
        why = f"this user may not stop {describe(processes)}, because another user started the server"
        raise NotPermitted(why, hint="sudo -u THAT-USER gemmaspec down …") from None


def describe(processes: list[psutil.Process]) -> str:
    """Return `pid 12, 13` for messages."""
    return "pid " + ", ".join(str(process.pid) for process in processes)
