"""The exceptions in the log of a server with several processes, and which of them came first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemmaspec.run.ready.logline import message_of, process_of

_BEGINS: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,7}), in (?P<function>.{1,200})$')
_SOURCE: Final = "    "
_NAME: Final = r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}"
_EXCEPTION: Final = re.compile(rf"(?P<name>{_NAME})(?::(?: .*)?)?$")
_UNFRAMED: Final = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)\b(?::(?: |$)|$)")
"""The line that ends a traceback, which is an exception even without one."""
_HANDLING: Final = "During handling of the above exception, another exception occurred:"
_FATAL: Final = re.compile(
    r"EngineCore (?:failed to start|encountered a fatal error)|WorkerProc (?:failed to start|hit an exception)"
)
"""v1/engine/core.py and v1/executor/multiproc_executor.py, every release."""
_POINTERS: Final = re.compile(r"[Ss]ee (?:root cause above|stack trace|the stack trace)|check the stack trace above")
_CONSEQUENCES: Final = re.compile(
    r"(?:\w+\.){0,8}(?:EngineDeadError|BrokenPipeError|ConnectionResetError|EOFError|CancelledError|SystemExit"
    r"|KeyboardInterrupt|DistNetworkError)\b|RuntimeError: cancelled$|.{0,300}Connection closed by peer"
    r"|.{0,300}TCPStore\b"
)
"""Messages of a process whose peer has ended."""
_CONTINUED: Final = re.compile(r":$|\bvalidation errors? for \w{1,80}$")
"""An exception whose message is on the next two lines, such as the key and problem of a validation error."""
_MORE_LINES: Final = 2
_OVERLAY: Final = re.compile(r".*/(?=vllm/[^/])")


@dataclass(frozen=True, kw_only=True)
class Raised:
    """One exception of a log."""

    process: str
    """The vLLM process that raised it; "" if it has no name."""
    text: str
    """The exception with its message, on one line."""
    place: str | None = None
    """`file:line, in function` of the innermost frame."""
    source: str | None = None
    """The line of code there."""
    fatal: bool = False
    """Whether vLLM logged it as the cause of the process's end."""
    then: str | None = None
    """The exception raised while it was handled."""

    @property
    def points(self) -> bool:
        """Whether it only reports that something else failed."""
        return bool(_POINTERS.search(self.text))

    @property
    def follows(self) -> bool:
        """Whether it is only the message of a process whose peer has ended."""
        return self.points or bool(_CONSEQUENCES.match(self.text))


@dataclass
class _Process:
    """What one process has printed of a traceback so far."""

    open: bool = False
    frame: tuple[str, str, str] | None = None
    source: str | None = None
    fatal: bool = False
    handling: int | None = None
    last: int | None = None
    more: int = 0


def root_exception(lines: Sequence[str]) -> Raised | None:
    """Return the exception that explains most; None if the log shows none.

    vLLM's processes pass an error upwards, wrap it each time and point to the one above. The first one that vLLM
    logged as the end of a process counts, whichever worker raised it; otherwise the first of all. Exceptions that
    only follow from another process's end count if there is nothing else.
    """
    ended = [error for error in raised(lines) if not error.points]
    first = [error for error in ended if not error.follows]
    fatal = [error for error in first if error.fatal]
    return next(iter([*fatal, *first, *ended]), None)


def raised(lines: Sequence[str]) -> list[Raised]:
    """Return every exception of a log, in the order in which they were printed."""
    errors: list[Raised] = []
    processes: dict[str, _Process] = {}
    for line in lines:
        name = process_of(line)
        _take(processes.setdefault(name, _Process()), name, message_of(line), errors)
    return errors


def _take(state: _Process, name: str, message: str, errors: list[Raised]) -> None:
    """Add one line of one process."""
    if _FATAL.match(message):
        state.fatal = True
    elif message.startswith(_BEGINS):
        state.open, state.frame, state.source, state.more = True, None, None, 0
    elif message == _HANDLING:
        state.handling = state.last
    elif frame := _FRAME.match(message):
        state.frame, state.source = (frame["file"], frame["line"], frame["function"]), None
    elif state.open and message.startswith(_SOURCE) and state.frame:
        state.source = state.source or message.strip()
    elif (_EXCEPTION if state.open and state.frame else _UNFRAMED).match(message):
        _add(state, name, message, errors)
    elif state.more and message.strip() and state.last is not None:
        state.more -= 1
        before = errors[state.last]
        errors[state.last] = replace(before, text=f"{before.text} {message.strip()}")


def _add(state: _Process, name: str, message: str, errors: list[Raised]) -> None:
    if state.handling is not None:
        errors[state.handling] = replace(errors[state.handling], then=message)
        state.handling = None
    else:
        place = _place(state.frame) if state.frame else None
        errors.append(Raised(process=name, text=message, place=place, source=state.source, fatal=state.fatal))
        state.last = len(errors) - 1
        if _CONTINUED.search(message):
            state.more = _MORE_LINES
        else:
            state.more = 0
    state.open, state.frame, state.source = False, None, None


def _place(frame: tuple[str, str, str]) -> str:
    file, line, function = frame
    return f"{_OVERLAY.sub('', file)}:{line}, in {function}"


def described(error: Raised) -> Iterator[str]:
    """Yield an exception as lines for people: its message, its place, and the line of code."""
    yield error.text
    if error.place:
        yield f"  at {error.place}"
    if error.source and not error.source.startswith("raise "):
        yield f"     {error.source}"
    if error.then:
        yield f"  while handling it: {error.then}"
