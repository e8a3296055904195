"""Why a server died, read from its log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.ready.known import KNOWN, KnownFailure
from gemmaspec.ready.logline import message_of

_EXCEPTION: Final = re.compile(r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)\b(?:: |$)")
_SOURCE: Final = "    "
"""A traceback's source lines begin so; `raise SomeError(` is not yet what happened."""
_WRAPPERS: Final = re.compile(r"See (?:root cause above|stack trace (?:\(above\) )?for (?:the )?root cause)")
_REFUSALS: Final = re.compile(r"\bvalidation errors? for \w{1,80}$")
"""Pydantic's first line; the key and what is wrong with it are on the next two."""


@dataclass(frozen=True)
class Cause:
    """A known failure and the message that showed it."""

    failure: KnownFailure
    message: str


def find_cause(lines: Sequence[str]) -> Cause | None:
    """The root cause in a log: the earliest failure that is known, and rather a specific one.

    vLLM's processes hand an error upwards and wrap it each time ("Engine core initialization failed. See root
    cause above."), so that what comes first explains most.
    """
    messages = _messages(lines)
    for wanted in (False, True):
        candidates = [known for known in KNOWN if known.general is wanted]
        for message in messages:
            found = next((known for known in candidates if known.pattern.search(message)), None)
            if found:
                return Cause(found, message)
    return None


def explain(lines: Sequence[str]) -> KnownFailure | None:
    """The known failure that a log shows; None when it shows none."""
    cause = find_cause(lines)
    return cause.failure if cause else None


def first_exception(lines: Sequence[str]) -> str | None:
    """The first exception of a log that does not merely point to another: the best guess at the cause."""
    found = (text for text in _messages(lines) if _EXCEPTION.match(text) and not _WRAPPERS.search(text))
    return next(found, None)


def _messages(lines: Sequence[str]) -> list[str]:
    """What the lines say, without source lines; a refusal of pydantic's is one message."""
    said = [text for line in lines if not (text := message_of(line)).startswith(_SOURCE)]
    for index, text in enumerate(said):
        if _REFUSALS.search(text):
            said[index] = ": ".join([text, *(part.strip() for part in said[index + 1 : index + 3])])
    return said
