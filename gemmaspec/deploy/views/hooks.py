"""Who is told of an event that `watch` sees: a command of the user's, and an address. Neither ever stops the watch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gemmaspec.errors import UsageError
from gemmaspec.sidecar.asking import post
from gemmaspec.webhooks import webhook

VARIABLE: Final = "GEMMASPEC_WEBHOOK"
"""An address that is a secret itself, as those of chat services are."""
_COMMAND_S: Final = 30


def address(configured: str | None) -> str | None:
    """Return where events are posted to: $GEMMASPEC_WEBHOOK, else the profile's. Raises UsageError for a wrong one."""
    found = os.environ.get(VARIABLE)
    if not found:
        return configured
    try:
        return webhook(found)
    except ValueError as error:
        raise UsageError(f"{VARIABLE} {error}") from None


def tell(command: Sequence[str], url: str | None, event: Mapping[str, Any]) -> Iterator[str]:
    """Hand an event on, and yield what went wrong."""
    if command and (wrong := _run(command, json.dumps(event))):
        yield wrong
    if url and (wrong := post(url, event)):
        yield wrong


def _run(command: Sequence[str], document: str) -> str | None:
    try:
        done = subprocess.run(
            command, input=document, text=True, capture_output=True, timeout=_COMMAND_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = "took too long" if isinstance(error, subprocess.TimeoutExpired) else str(error.strerror)
        return f"{command[0]}: {said}"
    return f"{command[0]} ended with exit code {done.returncode}" if done.returncode else None
