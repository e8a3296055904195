"""Who is told of an event that `watch` sees: a command of the user's, and an address. Neither ever stops the watch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from gemmaspec.errors import UsageError
from gemmaspec.webhooks import webhook

VARIABLE: Final = "GEMMASPEC_WEBHOOK"
"""An address that is a secret itself, as those of chat services are."""
_COMMAND_S: Final = 30
_POST_S: Final = 10.0


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
    document = json.dumps(event)
    if command and (wrong := _run(command, document)):
        yield wrong
    if url and (wrong := _post(url, document)):
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


def _post(url: str, document: str) -> str | None:
    """Post to the address; only its host is ever named, since its path may be a secret."""
    import httpx

    host = f"webhook at {urlsplit(url).hostname}"
    headers = {"Content-Type": "application/json"}
    try:
        with (
            httpx.Client(timeout=_POST_S, trust_env=False, follow_redirects=False) as client,
            client.stream("POST", url, content=document, headers=headers) as answer,
        ):
            status = answer.status_code
    except httpx.TimeoutException:
        return f"{host}: no answer within {_POST_S:.0f} s"
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        return f"{host}: cannot be reached"
    return None if 200 <= status < 300 else f"{host}: HTTP {status}"
