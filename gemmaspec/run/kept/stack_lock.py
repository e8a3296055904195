"""One command at a time for each stack: a lock over all of it, who holds it, and how far it has come."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

from gemmaspec.core import records
from gemmaspec.core.errors import GemmaspecError, TimedOut, UsageError
from gemmaspec.core.files import make_folder, state_dir, unwritable
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.run.engine.proc import boot_id, start_ticks

if TYPE_CHECKING:
    import filelock

    from gemmaspec.run.ready.phases import Phase

STARTS: Final = ("up", "restart", "rollback", "bench", "tune")
"""Commands that lock a stack for as long as a server takes to start; the others end soon by themselves."""

_POLL_S: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a command waits for whoever holds its stack, in seconds of its clock."""

    short_s: float = 120.0
    """Until another command must have ended; `down` takes up to a server's grace period."""
    unseen_s: float = 2.0
    """Until its record is missed."""
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A gemmaspec command that runs, or has run."""

    command: str
    """up, restart, rollback, down, bench, tune, lock or render."""
    pid: int
    start_ticks: int
    """Clock ticks from boot to its start, so that a reused pid is not mistaken for it."""
    boot_id: str

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.boot_id == boot_id() and start_ticks(self.pid) == self.start_ticks

    def __str__(self) -> str:
        return f"gemmaspec {self.command} (pid {self.pid})"


def this_command(command: str) -> Caller:
    """Return this process as the caller of a command."""
    pid = os.getpid()
    return Caller(command=command, pid=pid, start_ticks=start_ticks(pid) or 0, boot_id=boot_id())


@dataclass(frozen=True, kw_only=True)
class Holder(Caller):
    """The gemmaspec command that currently works on a stack."""

    stack: str
    since: float
    """Seconds since 1970."""
    wants: str = ""
    """Its request; another command with the same request can wait for it."""
    phase: str = ""
    """What it is doing; a phase of the start once the server has been started."""
    phase_since: float = 0.0
    """Seconds since 1970."""

    def __str__(self) -> str:
        seconds = f"{max(0.0, time.time() - self.since):.0f} s"
        return f"gemmaspec {self.command} (pid {self.pid}, for {seconds}{f', {self.phase}' if self.phase else ''})"


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `down` and service managers send it: Ctrl-C by somebody who wants nothing to run."""


class Owner:
    """A stack locked by this process; `tell` shows others the current step."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        try:
            self._tell(holder)
        except GemmaspecError:
            if holder.command != "down":  # a full disk starts nothing, and keeps nothing running
                raise

    def tell(self, phase: str) -> None:
        """Record the current step. A full disk does not stop the command."""
        with contextlib.suppress(GemmaspecError):
            self._tell(replace(self._holder, phase=phase, phase_since=round(time.time(), 3)))

    def close(self) -> None:
        """Remove the record of the current step."""
        with contextlib.suppress(OSError):
            _file(self._holder.stack).unlink(missing_ok=True)

    def _tell(self, holder: Holder) -> None:
        self._holder = holder
        records.write(_file(holder.stack), holder, mode=0o600)


class StartProgress(Protocol):
    """Receives the progress of a start."""

    def note(self, text: str) -> None:
        """Report one sentence."""

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        """Report that the start entered a phase, `elapsed` seconds after it began, and how many are left if known."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """Progress that other commands can read too."""

    progress: StartProgress
    owner: Owner

    def note(self, text: str) -> None:
        """Pass on one sentence."""
        self.progress.note(text)

    def doing(self, what: str) -> None:
        """Record a step of the command itself."""
        self.owner.tell(what)

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        """Pass on and record a phase of the server."""
        self.owner.tell(str(phase))
        self.progress.phase(phase, elapsed, left)


def holder(name: str) -> Holder | None:
    """Return the command that currently works on a stack, if any.

    Stale files of killed commands and damaged files do not count.
    """
    record = records.kept(Holder, _file(name), limit=64 * 1024)
    if record and record.alive:
        return record
    return None


@contextlib.contextmanager
def owned(
    name: str,
    command: str,
    *,
    wants: str = "",
    note: Callable[[str], None] = lambda _: None,
    timeout_s: float = Patience.short_s,
    patience: Patience = Patience(),
) -> Iterator[Owner]:
    """Lock a stack while the body runs; SIGTERM acts like Ctrl-C.

    Waits for a command with the same request (up to `timeout_s`), and for one that ends by itself. `down` cancels a
    start and waits for its end. Raises GemmaspecError with the holder for any other command, TimedOut, and
    EnvironmentMissing where another user can write what would be run.
    """
    if "/" in name or name.startswith("."):
        raise UsageError(f"{name!r} is not a valid name of a stack", hint="gemmaspec status")
    ensure_own(name)
    import filelock  # slow to import, and most commands only ask who holds a stack

    lock = filelock.FileLock(state_dir() / "owners" / f"{name}.lock", mode=0o600)
    try:
        make_folder(Path(lock.lock_file).parent)
        _acquire(lock, _Waiting(name, command, wants=wants, note=note, timeout_s=timeout_s, patience=patience))
    except OSError as error:
        raise unwritable(Path(lock.lock_file), error) from None
    try:
        me = Holder(stack=name, since=round(time.time(), 3), wants=wants, **dataclasses.asdict(this_command(command)))
        with _interrupted_by_sigterm():  # before anybody can read who holds the stack, and terminate it
            owner = Owner(me)
            try:
                yield owner
            finally:
                owner.close()
    finally:
        lock.release()


def _acquire(lock: filelock.BaseFileLock, waiting: _Waiting) -> None:
    """Take the lock, waiting for it if allowed."""
    while not _taken(lock):
        waiting.look(holder(waiting.name))
        if waiting.over():
            # Looking takes time on a busy machine, and the holder may have ended meanwhile.
            if _taken(lock):
                return
            raise waiting.timed_out()
        time.sleep(_POLL_S)


def _taken(lock: filelock.BaseFileLock) -> bool:
    """Take the lock if it is free, and return whether this process has it now."""
    import filelock

    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    return True


class _Waiting:
    """One command waits for whoever holds its stack.

    A holder is known by its record, which is written after the lock is taken and removed before it is released. In
    between nobody can be seen, so what was seen last counts until somebody else is.
    """

    def __init__(
        self,
        name: str,
        command: str,
        *,
        wants: str,
        note: Callable[[str], None],
        timeout_s: float,
        patience: Patience,
    ) -> None:
        self.name = name
        self._command = command
        self._wants = wants
        self._note = note
        self._timeout_s = timeout_s
        self._patience = patience
        self._began = patience.clock()
        self._met = self._began
        self._other: Holder | None = None
        self._phase = ""
        self._says_unseen = True

    def look(self, other: Holder | None) -> None:
        """Take notice of the holder; raises GemmaspecError if this command cannot wait for it."""
        if other is None:
            self._nobody_seen()
            return
        if self._other is None or other.since != self._other.since:  # not the pid: bench stops a server and starts one
            self._met = self._patience.clock()
            self._phase = other.phase
            _meet(other, self._command, wants=self._wants, note=self._note, timeout_s=self._timeout_s)
        elif self._joins(other) and other.phase != self._phase:
            self._phase = other.phase
            self._note(f"the other command (pid {other.pid}): {other.phase}")
        self._other = other

    def over(self) -> bool:
        """Return whether it has waited as long as it may."""
        now = self._patience.clock()
        if self._other and self._joins(self._other):
            return now - self._began >= self._timeout_s
        return now - self._met >= self._patience.short_s

    def timed_out(self) -> TimedOut:
        """Return the error that says for whom it waited, and how long."""
        waited = self._patience.clock() - self._began
        return TimedOut(
            f"{self.name} is still held by {self._other or 'another gemmaspec'} after {waited:.0f} s",
            hint=f"gemmaspec status {self.name}",
        )

    def _joins(self, other: Holder) -> bool:
        return bool(self._wants) and other.wants == self._wants

    def _nobody_seen(self) -> None:
        """Say once that the holder cannot be seen; it writes its record within moments, unless it runs elsewhere."""
        unseen_s = self._patience.clock() - self._began
        if self._other or not self._says_unseen or unseen_s < self._patience.unseen_s:
            return
        self._says_unseen = False
        self._note(
            f"waiting for another gemmaspec command that holds {self.name}; "
            "its process cannot be seen from here (another container?)"
        )


def _meet(
    other: Holder,
    command: str,
    *,
    wants: str,
    note: Callable[[str], None],
    timeout_s: float,
) -> None:
    """Report that this command waits for another one, ask that one to end, or refuse to wait."""
    if command == "down" and other.command in STARTS:
        note(f"stopping {other}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(other.pid, signal.SIGTERM)
    elif wants and other.wants == wants:
        note(
            f"another gemmaspec command (pid {other.pid}) is starting it; "
            f"waiting for that start, {timeout_s:.0f} s at most (--timeout)"
        )
    elif other.command in STARTS:
        raise GemmaspecError(
            f"{other.stack} is held by {other}",
            hint=f"gemmaspec down {other.stack}    # cancels that start; or wait for it",
        )
    else:
        note(f"waiting for {other}")


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Make `kill PID` and service managers end a start as Ctrl-C does, which stops its server."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _file(name: str) -> Path:
    return state_dir() / "owners" / f"{name}.json"
