"""Read a log file while it is written, truncated or replaced.

Start a process that outlives the command that started it.

The last start of a stack: by its record, by the process that holds its lock, or known to be somewhere else.

Servers whose stack folder was deleted while they ran: found by their marker and their working folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import psutil

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import UnreadableFile, open_regular, other_owner, unwritable
from gemmaspec.run.engine import record
from gemmaspec.run.engine.proc import boot_id, start_ticks
from gemmaspec.run.engine.record import MARKER, Record
from gemmaspec.run.engine.server import Server


def start_detached(
    command: Sequence[str], *, program: str | Path, environment: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a command in its own session without a terminal, so that neither Ctrl-C nor the shell's end stops it.

    It runs in `folder` and writes to `log`; the log of the previous start is kept with .1 appended. Raises
    EnvironmentMissing if the log cannot be written or `program`, as errors name it, cannot be run. Call it under
    `signals_wait`.
    """
    try:
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise unwritable(log, error) from None
    try:
        return subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise EnvironmentMissing(f"cannot run {program}: {error.strerror}", hint="gemmaspec doctor") from None
    finally:
        os.close(output)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the body is done.

    An exception between fork and exec would lose the child: no variable has it, and it has not the new environment yet.
    """
    if threading.current_thread() is not threading.main_thread():  # signals interrupt only that one
        yield
        return
    came: list[int] = []
    handlers = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}
    held = [sig for sig, handler in handlers.items() if callable(handler)]  # what is ignored stays so in the child
    try:
        for held_signal in held:
            signal.signal(held_signal, lambda number, _: came.append(number))
        yield
    finally:
        for held_signal in held:
            signal.signal(held_signal, handlers[held_signal])
        for number in came:  # also where the body has failed, and whoever called it may go on
            signal.raise_signal(number)


class Elsewhere(EnvironmentMissing):
    """The server runs on another machine or in another container, which shares the state folder."""


def last_of(server: Server) -> Record | None:
    """Return the record of the last start, restored from its leader if it is lost, damaged or has no pid.

    Raises Elsewhere for a server that another machine or container started, and that still holds its lock.
    """
    try:
        last = record.read(server.run_dir)
    except UnreadableFile as error:
        if rescued := _rescued(server):
            return rescued
        if other_owner(error.path):
            raise
        hint = f"rm -r {error.path}    # after checking that no process is left: pgrep -af vllm"
        raise UnreadableFile(error.path, error.why, hint=hint) from None
    if last is None:
        return _rescued(server)
    if (where := last.elsewhere) and _is_held(server):
        raise Elsewhere(
            f"{server.name} was started in {where}, which shares this state folder, and it still runs",
            hint=f"gemmaspec down {server.name}    # there; from here its processes cannot be seen",
        )
    return record.completed(last)


def _rescued(server: Server) -> Record | None:
    holder = holder_of(server)
    return record.rescued(server.name, holder) if holder else None


def _is_held(server: Server) -> bool:
    """Return whether any process holds the launcher's lock, also one that cannot be seen from here."""
    try:
        with (server.run_dir / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def holder_of(server: Server) -> int | None:
    """Return the pid that holds the launcher's lock, e.g. a launcher started by hand; None if nobody does.

    The answer comes from /proc/locks, because trying the lock even for a moment could stop a starting launcher.
    """
    try:
        seen = (server.run_dir / "lock").stat()
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    file = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    holders = [fields[4] for fields in map(str.split, held) if fields[1] == "FLOCK" and fields[5] == file]
    return int(holders[0]) if holders else None


_DELETED: Final = "/run/cwd (deleted)"
"""How Linux names a deleted working folder in /proc/PID/cwd."""


def orphans(stacks: Path) -> Mapping[str, Record]:
    """Return a record for each server that still runs although its folder below `stacks` is gone, by name.

    A process of another user cannot be read and is not found.
    """
    by_name: dict[str, Record] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            where = str((process / "cwd").readlink())
            name = where.removesuffix(_DELETED).removeprefix(f"{stacks}/")
            if where == f"{stacks}/{name}{_DELETED}" and "/" not in name:
                made = _record(name, int(process.name))
                by_name |= {name: made} if made and name not in by_name else {}
    return {name: record.completed(run) for name, run in by_name.items()}


def _record(name: str, pid: int) -> Record | None:
    """Return the lost record, as far as one of its processes tells it."""
    marked, _, nonce = psutil.Process(pid).environ().get(MARKER, "").partition(":")
    if marked != name or not nonce or start_ticks(pid) is None:
        return None
    return Record(stack=name, nonce=nonce, boot_id=boot_id(), since_ticks=0, command=())


def marked(name: str, folder: Path) -> list[Record]:
    """Return a record for each start of a stack that has left processes here, read from those alone.

    They carry its mark, and their working folder is in the stack's `folder`, be it deleted. Needs no file and no disk.
    """
    by_nonce: dict[str, Record] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            if str((process / "cwd").readlink()).startswith(f"{folder}/") and (
                made := _record(name, int(process.name))
            ):
                by_nonce.setdefault(made.nonce, made)
    return [record.completed(run) for run in by_nonce.values()]


_BLOCK: Final = 64 * 1024
_POLL_S: Final = 0.1


def read(path: Path, *, tail: int | None, alive: Callable[[], bool] | None = None) -> Iterator[bytes]:
    """Yield the file's bytes from its start, or from its last `tail` lines; nothing if it is missing.

    With `alive`, yield new bytes as they come, until `alive()` is false and everything is read. A file that was
    truncated or replaced is read from its start. Raise UnreadableFile for anything but a regular file.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    try:
        file.seek(0 if tail is None else _start_of_last(file, tail))
        while True:
            # Check before reading, so that everything that was written before the end is still read.
            more = alive() if alive else False
            yield from _rest(file)
            if not more:
                return
            if _replaced(file, path):
                yield from _rest(file)
                file.close()
                file = open_regular(path)
            time.sleep(_POLL_S)
    finally:
        file.close()


def _rest(file: IO[bytes]) -> Iterator[bytes]:
    if os.fstat(file.fileno()).st_size < file.tell():
        file.seek(0)
    while block := file.read(_BLOCK):
        yield block


def _replaced(file: IO[bytes], path: Path) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return not os.path.samestat(now, os.fstat(file.fileno()))


def _start_of_last(file: IO[bytes], count: int) -> int:
    """Return the offset from which the last `count` lines begin, found from the end."""
    position = file.seek(0, os.SEEK_END)
    if count <= 0:
        return position
    ends = count + 1 if position and _at(file, position - 1, 1) == b"\n" else count
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        block = _at(file, position, size)
        offset = size
        while ends and (offset := block.rfind(b"\n", 0, offset)) >= 0:
            ends -= 1
        if not ends:
            return position + offset + 1
    return 0


def _at(file: IO[bytes], position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)
