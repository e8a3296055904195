"""What a log of any vLLM server shows: the known failure in it, else the first error and where vLLM raises it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.run.ready.failures import find_cause
from gemmaspec.run.ready.logline import message_of, printable
from gemmaspec.run.ready.raises import RaisedAt, where_raised
from gemmaspec.run.ready.tracebacks import described, root_exception

MAX_LINES: Final = 50_000
"""Lines to look at, the last ones: a start is shorter."""
_RELEASE: Final = re.compile(r"(?:vLLM API server version |LLM engine \(v)(?P<release>\d{1,3}\.\d{1,3}\.\d{1,3})")
"""Lines in which vLLM names its own release, every release."""
_NOTHING: Final = "no error of vLLM, torch or the system is in it"


@dataclass(frozen=True, kw_only=True)
class LogExplained:
    """What a log shows."""

    vllm: str | None
    """The release that it names."""
    code: str | None
    """The row of the table of failures; None for an unknown one."""
    message: str | None
    fix: str | None
    shown: tuple[str, ...]
    """The lines of the log that it was found by, safe to print."""
    raised: tuple[RaisedAt, ...]
    """Where vLLM raises it, if it is one of its own texts."""


def explain_log(lines: Sequence[str]) -> LogExplained:
    """Return the failure that a log shows. Raises GemmaspecError for a log without any error."""
    lines = lines[-MAX_LINES:]
    release = _release(lines)
    cause = find_cause(lines, version=release)
    root = root_exception(lines)
    if cause is None and root is None:
        raised = _any_raised(lines)
        if raised is None:
            raise GemmaspecError(f"{_NOTHING} ({len(lines)} lines)", hint="gemmaspec explain    # what can be asked")
        line, places = raised
        return LogExplained(vllm=release, code=None, message=None, fix=None, shown=(line,), raised=places)
    if cause and not (root and cause.failure.pattern.search(root.text)):
        shown = [cause.message.strip()]
    else:
        shown = list(described(root)) if root else []
    finding = cause.failure.finding if cause else None
    text = ""
    if cause:
        text = cause.message
    elif root:
        text = root.text
    return LogExplained(
        vllm=release,
        code=finding.code if finding else None,
        message=finding.message if finding else None,
        fix=finding.fix if finding else None,
        shown=tuple(printable(line)[:400] for line in shown),
        raised=where_raised(text),
    )


def _release(lines: Sequence[str]) -> str | None:
    for line in lines:
        if found := _RELEASE.search(line[:400]):
            return found["release"]
    return None


def _any_raised(lines: Sequence[str]) -> tuple[str, tuple[RaisedAt, ...]] | None:
    """Return the first of a few lines that vLLM raises, although it does not look like an exception."""
    for line in lines[:20]:
        message = message_of(line).strip()
        if places := where_raised(message):
            return printable(message)[:400], places
    return None
