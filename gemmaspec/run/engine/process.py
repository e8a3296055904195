"""The process engine: run vLLM from a local Python environment, detached from the shell."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import secrets
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.exclusive import exclusively
from gemmaspec.core.files import UnreadableFile, make_folder, read_regular, state_dir, unwritable
from gemmaspec.core.launcher.origins import interpreter_of
from gemmaspec.run.engine import listeners, memory_kills, port, proc, record
from gemmaspec.run.engine import tail as tail_of
from gemmaspec.run.engine.attested import FILE as ATTESTED
from gemmaspec.run.engine.attested import with_attested
from gemmaspec.run.engine.detached import signals_wait, start_detached
from gemmaspec.run.engine.last_start import Elsewhere, holder_of, last_of
from gemmaspec.run.engine.lines import lines
from gemmaspec.run.engine.orphans import orphans
from gemmaspec.run.engine.record import MARKER, Record
from gemmaspec.run.engine.report import MAX_REPORT, parse_report
from gemmaspec.run.engine.server import EngineName, Runs, Server, State

LOG: Final = "server.log"
"""The server's output in its run folder; LOG.1 is that of the previous start."""

MIN_FREE_BYTES: Final = 1024**3
"""Disk space for vLLM's compile cache and installed requirements."""

_LOCK_WAIT_S: Final = 10
_RELEASE_WAIT_S: Final = 30
"""Time for the kernel to end a killed process; freeing the memory of a large one takes seconds."""
_POLL_S: Final = 0.02
# They would make the interpreter use another environment's modules, or change how it runs.
_LEAKS: Final = (
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "__PYVENV_LAUNCHER__",
    "PYDANTIC_DISABLE_PLUGINS",
    # What patched code reads comes from the profile, where it is checked.
    "GEMMASPEC_LAUNCHES",
    "GEMMASPEC_DRAFT_IDS",
)


class ProcessEngine:
    """Runs a stack in its own session; its state is in the stack's run folder."""

    name: EngineName = "process"
    remote = False

    def __init__(self) -> None:
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        """Check interpreter, run folder, disk, left-over processes and port. Raise EnvironmentMissing."""
        _ensure_interpreter(server)
        _ensure_room(server)
        if self.state(server).status != "running":
            _ensure_nothing_left(server)
        if not port_is_free:
            port.ensure_free(server.bind, server.port)

    def ensure_answers(self, server: Server) -> None:
        """Raise StartFailed unless the recorded leader lives and only processes of its session hold the port."""
        last = last_of(server)
        if last is None or not record.leads(last):
            raise StartFailed(f"{server.name} no longer runs, and another server answers on port {server.port}")
        pids = {process.pid for process in record.members(last)}
        listeners.ensure_only(pids, server.bind, server.port)

    def data_root(self) -> Path | None:
        """Return None: it has no images."""
        return None

    def start_command(self, server: Server) -> tuple[str, ...]:
        """Return the launcher's argv as `start` runs it."""
        return launch_args(server)

    def start(self, server: Server) -> None:
        """Start the launcher, which becomes vLLM, and return. Raise StartFailed if it already runs."""
        with _exclusively(server):
            if (now := self.state(server)).status == "running":
                raise StartFailed(
                    f"{server.name} is already running ({now.detail})",
                    hint=f"gemmaspec down {server.name}",
                )
            _ensure_interpreter(server)
            _ensure_rendered(server)
            _ensure_nothing_left(server)
            _remove_report(server)
            self._spawn(server)

    def stop(self, server: Server) -> bool:
        """Terminate all its processes, and kill them after `stop_grace_s`; return True if there was one.

        A damaged record is restored from the environment of the process that holds the launcher's lock. Raise
        EnvironmentMissing if that process does not belong to this stack.
        """
        if not server.run_dir.is_dir():
            return False
        with _exclusively(server):
            last = last_of(server)
            if last:
                ended = bool(last) and record.end(last, grace_s=server.stop_grace_s)
            else:
                ended = False
            if child := self._children.pop(server.run_dir, None):
                child.wait()
            _await_lock(server, last)
            record.forget(server.run_dir)
            return ended

    def state(self, server: Server) -> State:
        """Return the state. Alive means the same boot, pid and start time as recorded, so no other process qualifies.

        The state is `unknown` if another process holds the launcher's lock. Raise UnreadableFile for a damaged record
        if the lock does not identify the process either.
        """
        try:
            last = last_of(server)
        except Elsewhere as error:
            return State(status="unknown", detail=error.message, hint=error.hint or "")
        if last is None:
            return _without_record(server)
        if record.leads(last):
            return State(status="running", detail=f"pid {last.pid}")
        left = record.members(last)
        if last.pid is None:  # the command that started it was killed in the meantime
            if left:
                return State(status="running", detail=record.describe(left))
            return _without_record(server)
        if left:
            detail = f"left processes behind: {record.describe(left)}"
        else:
            detail = ""
        return State(
            status="exited",
            exit_code=self._exit_code(server),
            detail=detail,
            ended=_last_word(server),
            starved=_starved(last),
        )

    def runs(self, server: Server) -> Runs | None:
        """Return the recorded command of the living leader."""
        last = last_of(server)
        if last and record.leads(last):
            return Runs(command=last.command)
        return None

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield clean lines of the last start's log file; with `follow`, until the server ends."""
        if not follow:
            log = lines(tail_of.read(server.run_dir / LOG, tail=tail))
            # One line of the file may be several here (a progress bar), so count the last ones again.
            yield from log if tail is None else deque(log, maxlen=tail)
            return
        yield from lines(tail_of.read(server.run_dir / LOG, tail=tail, alive=lambda: self._alive(server)))

    def report(self, server: Server) -> dict[str, Any] | None:
        """Return the launcher's report of the running server; None if it does not exist (yet) or is another server's.

        Raise GemmaspecError if it is not a JSON object or too long.
        """
        last = last_of(server)
        if last is None or not record.leads(last):
            return None
        file = server.run_dir / "report.json"
        text = read_regular(file, limit=MAX_REPORT)
        if text is None:
            return None
        try:
            read = parse_report(text)
        except GemmaspecError as error:
            raise UnreadableFile(file, error.message) from None
        if read.get("pid") != last.pid:
            return None
        return with_attested(read, self.read(server, str(server.run_dir / ATTESTED)))

    def read(self, server: Server, path: str, *, service: str = "vllm") -> bytes | None:
        """Return a file as the running server sees it, at most MAX_REPORT + 1 bytes; None if it is missing."""
        if service != "vllm" or not self._alive(server):
            return None
        try:
            return read_regular(Path(path), limit=MAX_REPORT, follow=True)
        except UnreadableFile:
            return None

    def read_all(self, server: Server, paths: Sequence[str], *, service: str = "vllm") -> Mapping[str, bytes]:
        """Return these files by their paths as `read` does."""
        contents = {path: self.read(server, path, service=service) for path in paths}
        return {path: content for path, content in contents.items() if content is not None}

    def _alive(self, server: Server) -> bool:
        last = last_of(server)
        return last is not None and record.leads(last)

    def _exit_code(self, server: Server) -> int | None:
        """Return the exit code as in a shell (128 + signal); only the process that started the server knows it."""
        child = self._children.get(server.run_dir)
        code = child.poll() if child else None
        if code is not None and code < 0:
            return 128 - code
        return code

    def _spawn(self, server: Server) -> None:
        """Start the launcher.

        The record with the marker is written first, so that a crash leaves no unknown process.
        """
        command = launch_args(server)
        group = memory_kills.memory_group()
        group_kills = memory_kills.group_kills(group) if group else None
        made = Record(
            stack=server.name,
            nonce=secrets.token_hex(16),
            boot_id=proc.boot_id(),
            since_ticks=proc.now_ticks(),
            command=record.without_key(command),
            host=platform.node(),
            namespace=record.namespace(),
            machine=record.machine_id(),
            group=str(group or ""),
            group_kills=group_kills,
        )
        record.write(server.run_dir, made)
        try:
            with signals_wait():
                child = self._children[server.run_dir] = _detached(server, command, environment(server, made.marker))
                known = dataclasses.replace(made, pid=child.pid, start_ticks=proc.start_ticks(child.pid))
                record.write(server.run_dir, known)
        except BaseException:
            # Ctrl-C may come between the start and the record; then the marker identifies the process.
            record.end(made, grace_s=0)
            if begun := self._children.pop(server.run_dir, None):
                begun.wait()
            record.forget(server.run_dir)
            raise


def _remove_report(server: Server) -> None:
    """Remove the report of the previous start. Raise EnvironmentMissing for a folder in its place."""
    file = server.run_dir / "report.json"
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None


def _starved(last: Record) -> str:
    """Return that the kernel has killed processes of the server's control group for memory since the start.

    What it has killed elsewhere on the machine explains nothing.
    """
    if last.group and last.boot_id == proc.boot_id():
        now = memory_kills.group_kills(Path(last.group))
    else:
        now = None
    if now is None or last.group_kills is None or now <= last.group_kills:
        return ""
    killed = now - last.group_kills
    word = "1 process" if killed == 1 else f"{killed} processes"
    return f"memory ran out: the kernel has killed {word} of its control group since it started"


def _last_word(server: Server) -> float | None:
    """Return the time of the server's last output, which is about when it ended."""
    with contextlib.suppress(OSError):
        return (server.run_dir / LOG).stat().st_mtime
    return None


def launch_args(server: Server) -> tuple[str, ...]:
    """Return the launcher's argv: the stack's files, the run and cache folders, then the server's own command."""
    folder = server.folder.absolute()
    speculative = ("--speculative-config", str(folder / "speculative-config.json")) if server.speculates else ()
    return (
        str(server.python), str(folder / "launch.py"), "--plan", str(folder / "plan.json"),
        "--run-dir", str(server.run_dir.absolute()), "--cache-dir", str(state_dir() / "cache"),
        *speculative, "--", *server.command,
    )  # fmt: skip


def environment(server: Server, marker: str) -> dict[str, str]:
    """Return the environment of a server: that of its Python, and the marker by which its processes are known."""
    # vLLM names its processes with setproctitle, which wipes /proc/PID/environ unless SPT_NOENV is set.
    return python_environment(server) | {"SPT_NOENV": "1", MARKER: marker}


def python_environment(server: Server) -> dict[str, str]:
    """Return this process's environment without settings of another Python, plus the server's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name not in _LEAKS}
    path = f"{server.python.parent if server.python else ''}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | {"PATH": path} | dict(server.environment)


def _detached(server: Server, command: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
    neutral = server.run_dir / "cwd"  # an empty folder, so that no file of the user can shadow a module
    try:
        neutral.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(neutral, error) from None
    log, program = server.run_dir / LOG, str(server.python)
    return start_detached(command, program=program, environment=env, folder=neutral, log=log)


@contextlib.contextmanager
def _exclusively(server: Server) -> Iterator[None]:
    """Allow only one start or stop of a stack at a time, also across processes."""
    lock = server.run_dir / "engine.lock"
    taken = GemmaspecError(
        f"another gemmaspec command is starting or stopping {server.name}", hint=f"gemmaspec status {server.name}"
    )
    with exclusively(lock, wait_s=_LOCK_WAIT_S, taken=taken):
        yield


def _ensure_interpreter(server: Server) -> None:
    hint = "gemmaspec doctor"
    if server.python is None or not server.python.is_file():
        raise EnvironmentMissing(f"the Python of the runtime is missing: {server.python}", hint=hint)
    if not os.access(server.python, os.X_OK):
        raise EnvironmentMissing(f"the Python of the runtime is not executable: {server.python}", hint=hint)
    _ensure_not_moved(server, server.python)


def _ensure_not_moved(server: Server, python: Path) -> None:
    """Raise EnvironmentMissing if the program next to the interpreter names another one, as in a copied environment."""
    program = python.parent / (server.command[0] if server.command else "")
    runs = interpreter_of(str(program), (), f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if runs is None or runs[0] == str(program) or Path(runs[0]).parent.resolve() == python.parent.resolve():
        return
    env = python.parent.parent
    again = f"rm -r {env}    # then: gemmaspec up {server.name}, which builds it again"
    raise EnvironmentMissing(
        f"{program} would run {runs[0]}, not {python}: the environment was moved or copied",
        hint=again if env.is_relative_to(state_dir()) else f"head -1 {program}    # install vLLM in {env} again",
    )


def _ensure_rendered(server: Server) -> None:
    for needed in (server.folder / "launch.py", server.folder / "plan.json"):
        if not needed.is_file():
            raise EnvironmentMissing(
                f"the stack is incomplete: {needed} is missing", hint=f"gemmaspec up {server.name}"
            )


def _ensure_room(server: Server) -> None:
    try:
        make_folder(server.run_dir)
        with tempfile.TemporaryFile(dir=server.run_dir):
            pass
    except OSError as error:
        raise unwritable(server.run_dir / LOG, error) from None
    free = shutil.disk_usage(server.run_dir).free
    if free < MIN_FREE_BYTES:
        raise EnvironmentMissing(
            f"only {free // 1024**2} MiB are free on the disk of {server.run_dir}, but a start needs 1 GiB",
            hint=f"df -h {server.run_dir}    # or set GEMMASPEC_STATE to a folder on a larger disk",
        )


def _ensure_nothing_left(server: Server) -> None:
    last = last_of(server)
    if last and (left := record.members(last)):
        raise EnvironmentMissing(
            f"the last run of {server.name} left processes behind: {record.describe(left)}",
            hint=f"gemmaspec down {server.name}",
        )
    if lost := orphans(server.folder.absolute().parent).get(server.name):
        raise EnvironmentMissing(
            f"the folder of {server.name} was deleted, but its server still runs "
            f"({record.describe(record.members(lost))})",
            hint=f"gemmaspec down {server.name}",
        )
    _await_lock(server, last)


def _without_record(server: Server) -> State:
    holder = holder_of(server)
    if holder is None or proc.is_ending(holder):
        return State(status="absent")
    detail = f"pid {holder} holds its lock, but gemmaspec did not start it"
    return State(status="unknown", detail=detail, hint=f"ps -fp {holder}")


def _await_lock(server: Server, ours: Record | None) -> None:
    """Wait until the launcher's lock is free of a process that ends. Raise EnvironmentMissing for any other holder.

    A killed leader is a zombie as soon as its own thread has ended, while its other threads still end and the lock is
    still held: measured, 0.02 to 0.15 s with 60 threads and 1.5 GB.
    """
    deadline = time.monotonic() + _RELEASE_WAIT_S
    while holder := holder_of(server):
        is_own = ours is not None and ours.pid == holder
        if not is_own and not proc.is_ending(holder):
            raise EnvironmentMissing(
                f"{server.run_dir} is in use: pid {holder} holds its lock, but gemmaspec did not start it",
                hint=f"ps -fp {holder}    # then: kill {holder}",
            )
        if time.monotonic() > deadline:
            raise EnvironmentMissing(
                f"pid {holder} of {server.name} was killed {_RELEASE_WAIT_S} s ago, and the kernel still ends it",
                hint=f"ps -Lo pid,tid,stat,wchan {holder}    # when it is gone: gemmaspec up {server.name}",
            )
        time.sleep(_POLL_S)
