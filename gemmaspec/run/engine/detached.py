"""Start a process that outlives the command that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import unwritable


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
