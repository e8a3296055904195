"""Why a server that had answered has ended, read from the end of its log. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.run.ready.failed import LAUNCHER, STARTS_VLLM
from gemmaspec.run.ready.failures import find_cause
from gemmaspec.run.ready.known_failures import KILLED
from gemmaspec.run.ready.logline import message_of, printable
from gemmaspec.run.ready.tracebacks import described, root_exception

_LIVED: Final = re.compile(r'"\s200\b|Avg generation throughput: ')
"""An answered request (uvicorn), or vLLM's line of every 10 s: what stands before is not why it ended."""
_CORE_GONE: Final = re.compile(
    r"(?i)(?:\[shutdown\] MPClient: )?engine core (?:proc \S{1,80} )?(?:exited|died) unexpectedly"
    r"|.{0,80}\bEngineDeadError\b"
)
"""v1/engine/core_client.py, every release: the process of the engine core has ended, and said nothing of an error."""
_ASKED: Final = re.compile(r"Finished server process \[\d{1,10}\]|Shutting down$")
"""uvicorn after SIGTERM or SIGINT."""
_SIGKILL: Final = (137, -9)
_KILLED: Final = (
    "it was killed (SIGKILL): by somebody, or by the kernel because memory ran out; nothing here shows which"
)
_ASK_KERNEL: Final = "journalctl --dmesg --grep 'Out of memory'    # says whether it was the kernel"
_MOST: Final = 300


@dataclass(frozen=True, kw_only=True)
class Death:
    """Why a server has ended."""

    why: str
    fix: str | None = None
    """What to change, for a known failure."""


def failed(lines: Sequence[str]) -> Death:
    """Return why a start failed: a known failure, its first exception, or the launcher's last words."""
    told = _said(lines)
    launched = [text for text in map(message_of, lines) if text.startswith(LAUNCHER)]
    if told or not launched:
        return told or Death(why="")
    if STARTS_VLLM.match(launched[-1]):
        return Death(why="vLLM ended, and its log names no error")
    return Death(why=_short(launched[-1].removeprefix(LAUNCHER)))


def death(
    lines: Sequence[str],
    *,
    exit_code: int | None = None,
    starved: str = "",
    rebooted: bool = False,
) -> Death:
    """Return why a server has ended: a known failure, its first exception, or how it was ended, as far as it shows.

    `starved`: that the kernel has killed one of its processes because memory ran out. `rebooted`: that the
    machine was booted again since it started.
    """
    end = _after_it_lived(lines)
    if last_words := _said(end):
        return last_words
    if rebooted:
        return Death(why="this machine was booted again since it started")
    messages = [message_of(line) for line in end]
    core_gone = any(map(_CORE_GONE.match, messages))
    if exit_code not in _SIGKILL and not core_gone and any(map(_ASKED.search, messages)):
        return Death(why="it was told to stop (SIGTERM or Ctrl-C), not by gemmaspec")
    if starved:
        return Death(why=starved, fix=KILLED.finding.fix)
    if exit_code in _SIGKILL and not core_gone:
        return Death(why=_KILLED, fix=_ASK_KERNEL)
    if core_gone:
        ended = "its engine core ended without an error"
    else:
        ended = "its log names no error"
    return Death(why=f"{ended}, as after kill -9 or when memory runs out")


def _said(lines: Sequence[str]) -> Death | None:
    """Return the known failure or the exception that explains most; None if the log shows only what followed."""
    if cause := find_cause(lines):
        return Death(why=f"{cause.failure.finding.message} ({_short(cause.message)})", fix=cause.failure.finding.fix)
    root = root_exception(lines)
    if root is None or root.follows:
        return None
    what, *where = described(root)
    return Death(why=f"{_short(what)}{f' ({_short(where[0].strip())})' if where else ''}")


def _after_it_lived(lines: Sequence[str]) -> Sequence[str]:
    lived = max((index for index, line in enumerate(lines) if _LIVED.search(line)), default=-1)
    return lines[lived + 1 :]


def _short(text: str) -> str:
    return printable(text)[:_MOST].strip()
