"""Why a server failed, read from its log, as one error: what happened, why, and how to fix it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.finding import Finding
from gemmaspec.run.ready.known_failures import KnownFailure, known_failures
from gemmaspec.run.ready.logline import message_of

_SOURCE: Final = "    "
"""How source lines in a traceback begin, so that `raise SomeError(` is not mistaken for the error."""
_REFUSALS: Final = re.compile(r"\bvalidation errors? for \w{1,80}$")
"""The first line of a validation error; the next two have the key and the problem."""
_VERSION: Final = re.compile(r"gemmaspec: patching vllm (?P<version>[\w.+!-]{1,80}) at ")
_IN: Final = re.compile(r"gemmaspec: patch (?P<patch>[a-z0-9-]{1,80}): (?:applies|applied|superseded)\b")
"""The launcher's lines that name the vLLM release and the bugs fixed in it."""


@dataclass(frozen=True)
class Cause:
    """A known failure and the message that identifies it."""

    failure: KnownFailure
    message: str


def find_cause(lines: Sequence[str], *, version: str | None = None) -> Cause | None:
    """Return the root cause in a log: the earliest known failure, preferring a specific one.

    `version` is the vLLM that ran, where the launcher's lines do not say it.

    vLLM's processes pass an error upwards and wrap it each time ("Engine core initialization failed. See root
    cause above."), so that the first message explains most. A bug whose patch is applied is not the cause.
    """
    messages = _messages(lines)
    rows = _rows(messages, version)
    for wanted in (False, True):
        candidates = [known for known in rows if known.general is wanted]
        for message in messages:
            known = next((known for known in candidates if known.pattern.search(message)), None)
            if known:
                return Cause(known, message)
    return None


def explain(lines: Sequence[str]) -> Finding | None:
    """Return the known failure that a log shows, if any."""
    cause = find_cause(lines)
    if cause:
        return cause.failure.finding
    return None


def _rows(messages: Sequence[str], version: str | None) -> list[KnownFailure]:
    """Return the failures that are possible for this server."""
    launched = [text for text in messages if text.startswith("gemmaspec: ")]
    version = next((match["version"] for text in launched if (match := _VERSION.match(text))), version)
    fixed = {match["patch"] for text in launched if (match := _IN.match(text))}
    return [known for known in known_failures(version) if fixed.isdisjoint(known.finding.patches)]


def _messages(lines: Sequence[str]) -> list[str]:
    """Return the messages of the lines, without source lines; a validation error is one message."""
    texts = [text for text in map(message_of, lines) if not text.startswith(_SOURCE)]
    for index, text in enumerate(texts):
        if _REFUSALS.search(text):
            texts[index] = ": ".join([text, *(part.strip() for part in texts[index + 1 : index + 3])])
    return texts
