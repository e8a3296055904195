"""How long a command waits for the one that holds its stack, and what it says meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from gemmaspec.core import records
from gemmaspec.core.errors import TimedOut
from gemmaspec.core.files import state_dir
from gemmaspec.run.kept.stack_lock import Holder, Patience, owned, this_command

WANTS = "the same start"


@pytest.fixture
def lock() -> Iterator[filelock.FileLock]:
    """The lock of the stack `mine`, held as another command holds it."""
    folder = state_dir() / "owners"
    folder.mkdir(parents=True)
    held = filelock.FileLock(folder / "mine.lock", thread_local=False)
    held.acquire()
    yield held
    held.release(force=True)


def record() -> Path:
    return state_dir() / "owners" / "mine.json"


def write(command: str = "up", *, wants: str = WANTS, since: float = 1.0, phase: str = "") -> None:
    me = this_command(command)
    said = Holder(
        stack="mine",
        since=since,
        wants=wants,
        phase=phase,
        command=command,
        pid=me.pid,
        start_ticks=me.start_ticks,
        boot_id=me.boot_id,
    )
    records.write(record(), said, mode=0o600)


def test_who_joins_a_start_still_joins_it_after_its_record_is_gone(lock: filelock.FileLock) -> None:
    """A holder removes its record before it releases the lock, after a start that took longer than the short wait."""
    write()
    said: list[str] = []

    def ends() -> None:
        seen.wait(30)
        record().unlink()
        time.sleep(1)
        lock.release(force=True)

    def note(text: str) -> None:
        said.append(text)
        seen.set()

    seen = threading.Event()
    other = threading.Thread(target=ends)
    other.start()
    with owned("mine", "up", wants=WANTS, note=note, timeout_s=20, patience=Patience(short_s=0.3)):
        pass
    other.join()
    assert len(said) == 1
    assert "is starting it; waiting for that start, 20 s at most (--timeout)" in said[0]


def test_it_takes_the_lock_once_more_before_it_gives_up(lock: filelock.FileLock) -> None:
    """On a busy machine the holder ends, and the wait with it, between looking at the lock and at the clock."""
    write()
    said: list[str] = []

    def clock() -> float:
        if not said:  # the holder was not met yet
            return 0.0
        lock.release(force=True)
        return 1e9

    with owned("mine", "up", wants=WANTS, note=said.append, timeout_s=0.01, patience=Patience(clock=clock)):
        pass
    assert len(said) == 1


def test_down_terminates_a_start_whose_command_first_stopped_another_server(lock: filelock.FileLock) -> None:
    """As bench does with one that was left behind: `down` has met the process, but not yet as a start."""
    write("down", wants="")
    said: list[str] = []
    killed: list[int] = []

    def note(text: str) -> None:
        said.append(text.split()[0])
        if len(said) == 1:
            write("bench", wants="", since=2.0)

    def terminated(number: int, _: object) -> None:
        killed.append(number)
        lock.release(force=True)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        with owned("mine", "down", note=note, timeout_s=60):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (said, killed) == (["waiting", "stopping"], [signal.SIGTERM])


def test_it_waits_as_long_as_its_own_timeout_and_names_the_holder(lock: filelock.FileLock) -> None:
    write(phase="importing")
    began = time.monotonic()
    with (
        pytest.raises(TimedOut, match=r"mine is still held by gemmaspec up \(pid \d+, for .*, importing\) after"),
        owned("mine", "up", wants=WANTS, timeout_s=0.6, patience=Patience(short_s=0.0)),
    ):
        pass
    assert time.monotonic() - began >= 0.6


def test_who_joins_hears_each_phase_of_the_start(lock: filelock.FileLock) -> None:
    write(phase="patching")
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            write(phase="importing")
        else:
            lock.release(force=True)

    with owned("mine", "up", wants=WANTS, note=note, timeout_s=20):
        pass
    assert said[1].endswith(": importing")


def test_the_short_wait_counts_from_the_holder_that_it_is_for(lock: filelock.FileLock) -> None:
    """After a long start that it has joined, a `down` of a moment is no reason to give up."""
    write()
    said: list[str] = []
    looks_at_down = iter((False, False, True))

    def clock() -> float:
        """Ten seconds more with each holder that is met; the second one ends at the third look."""
        if len(said) == 2 and next(looks_at_down):
            lock.release(force=True)
        return 10.0 * len(said)

    def note(text: str) -> None:
        said.append(text)
        write("down", wants="", since=2.0)

    patience = Patience(short_s=15.0, clock=clock)
    with owned("mine", "up", wants=WANTS, note=note, timeout_s=20, patience=patience):
        pass
    assert "waiting for gemmaspec down" in said[1]


def test_a_holder_that_cannot_be_seen_is_spoken_of(lock: filelock.FileLock) -> None:
    """Its record names a process of another pid namespace, so it counts as dead here."""
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        lock.release(force=True)

    with owned("mine", "down", note=note, patience=Patience(unseen_s=0.0)):
        pass
    assert said == [
        "waiting for another gemmaspec command that holds mine; "
        "its process cannot be seen from here (another container?)"
    ]
