"""One line of a server's log: its message, and the part that is safe to show. Logs are hostile text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gemmaspec.core.redact import redact

MAX_LINE: Final = 2000
"""Characters of a line to examine; vLLM prints whole configurations on one line."""

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,400}\x07?|\x1b.?")
_PROCESS: Final = re.compile(r"\((?P<name>[\w .:-]{1,80}) pid=\d{1,10}\) ?")
_LEVEL: Final = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]\s]{1,200}:\d{1,6}\] ?"
)
_SECRETS: Final = re.compile(
    r"(?P<keep>\bBearer +|\b[\w-]{0,40}(?:api[_-]?key|token|secret|password)['\"]?\s{0,4}[:=][\s\['\"]{0,8})"
    r"[^\s'\",\]}]{6,}|\bhf_\w{8,}",
    re.IGNORECASE,
)


def message_of(line: str) -> str:
    """Return the message of a line: without colours, overwritten text, and vLLM's prefix of process and level.

    `(EngineCore pid=7) INFO 11-20 17:48:56 [core.py:133] Initializing …` says `Initializing …`. The prefix is
    that of vllm/logger.py and vllm/utils/system_utils.py, every release; a progress bar overwrites itself
    after a carriage return, and only its last state counts.
    """
    text = _plain(line)
    for prefix in (_PROCESS, _LEVEL):
        if match := prefix.match(text):
            text = text[match.end() :]
    return text


def process_of(line: str) -> str:
    """Return which of vLLM's processes printed a line, such as `EngineCore` or `Worker_TP1`; "" if it has no name."""
    match = _PROCESS.match(_plain(line))
    if match:
        return match["name"]
    return ""


def _plain(line: str) -> str:
    """Return a line without colours and overwritten text."""
    return _ESCAPES.sub("", line.rstrip().rpartition("\r")[2][:MAX_LINE])


def printable(line: str, *, secrets: Sequence[str] = ()) -> str:
    """Return a line that is safe to show: no escapes or control characters, cut to MAX_LINE, no secrets.

    `secrets` are values to redact wherever they occur; what looks like a key or a token is redacted too.
    """
    text = "".join(char if char.isprintable() else " " for char in _plain(line))
    for secret in secrets:
        text = text.replace(secret, "***")
    return without_secrets(text)


def without_secrets(text: str) -> str:
    """Return a line of any length without this user's secrets and anything that looks like a key or a token."""
    return _SECRETS.sub(lambda match: f"{match['keep'] or ''}***", redact(text))
