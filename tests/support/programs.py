"""Which programs this process starts, as Python's own audit says it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_listening: list[list[list[str]]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _listening:
        command = arguments[1]
        words = [command] if isinstance(command, (str, bytes)) else command
        for heard in _listening:
            heard.append([str(word) for word in words])


sys.addaudithook(_hear)  # it stays for as long as the process does


@contextlib.contextmanager
def started_programs() -> Iterator[list[list[str]]]:
    """Collect the command line of every program that is started meanwhile."""
    heard: list[list[str]] = []
    _listening.append(heard)
    try:
        yield heard
    finally:
        _listening.remove(heard)
