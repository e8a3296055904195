"""Ports of this machine: each belongs to one stack, from before its start until it has stopped.

vLLM listens with SO_REUSEPORT, so the system itself would let two servers share a port and split the requests.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.exclusive import exclusively
from gemmaspec.core.files import UnreadableFile, read_regular, state_dir, write_whole
from gemmaspec.run.engine import router as routers
from gemmaspec.run.kept import stack_lock, stacks
from gemmaspec.run.kept.groups import read

_WAIT_S: Final = 30.0


def claim(port: int, stack: str) -> None:
    """Reserve `port` for `stack`.

    Raises EnvironmentMissing with the other stack's name if it belongs to a stack that runs or is being started.
    A stale claim does not count.
    """
    with _exclusively():
        other = claimed_by(port)
        if other and other != stack and (why := _live(port, other)):
            raise EnvironmentMissing(
                f"port {port} belongs to the stack {other}, which {why}",
                hint=f"gemmaspec down {other}    # or give this one another port: --set serve.port={port + 1}",
            )
        write_whole(_file(port), json.dumps({"schema": 1, "port": port, "stack": stack}) + "\n")


def settle(stack: str, port: int | None) -> None:
    """Release all claims of `stack` except the one of `port`; None releases all of them."""
    with _exclusively():
        for file in sorted(_folder().glob("*.json")):
            if file != (_file(port) if port else None) and _stack_in(file) == stack:
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)


def claimed_by(port: int) -> str | None:
    """Return the name of the stack that claimed a port; None if the claim is missing or invalid."""
    return _stack_in(_file(port))


def _live(port: int, stack: str) -> str:
    """Return why a claim still counts; '' if it is stale."""
    if (holder := stack_lock.holder(stack)) and holder.command in stack_lock.STARTS:
        return f"is being started by {holder}"
    try:
        if (group := read(stack)) and routers.state(group.router).status == "running":
            if group.router.port == port:
                return "runs there"
            return ""
        started = stacks.read_stack(stack)
    except GemmaspecError:
        return ""  # a damaged record: whoever listens on the port is found by looking at the port
    if started and started.server.port == port and stacks.look(started).lives:
        return "runs there"
    return ""


def _stack_in(file: Path) -> str | None:
    try:
        holder = json.loads(read_regular(file, limit=4096) or b"{}")
        return str(holder["stack"])
    except (UnreadableFile, ValueError, KeyError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def _exclusively() -> Iterator[None]:
    lock = _folder() / ".lock"
    taken = GemmaspecError(f"another gemmaspec command has locked {lock}", hint=f"fuser -v {lock}")
    with exclusively(lock, wait_s=_WAIT_S, taken=taken):
        yield


def _file(port: int) -> Path:
    return _folder() / f"{port}.json"


def _folder() -> Path:
    return state_dir() / "ports"
