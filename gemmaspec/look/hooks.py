"""The command and the address that `watch` calls on an event. Neither ever stops the watch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.webhooks import webhook
from gemmaspec.look.sidecar.asking import post
from gemmaspec.look.sidecar.telling import WAITS_S, Telling

VARIABLE: Final = "GEMMASPEC_WEBHOOK"
"""An address that is a secret itself, as those of chat services are."""
_COMMAND_S: Final = 30


def address(configured: str | None) -> str | None:
    """Return where events are posted to: $GEMMASPEC_WEBHOOK, else the profile's. Raises UsageError for a wrong one."""
    address = os.environ.get(VARIABLE)
    if not address:
        return configured
    try:
        return webhook(address)
    except ValueError as error:
        raise UsageError(f"{VARIABLE} {error}") from None


class Tellers:
    """Sends one stack's events to a command and an address, each from a thread of its own."""

    def __init__(self, command: Sequence[str], url: str | None, *, waits_s: Sequence[float] = WAITS_S) -> None:
        self.command, self.url = tuple(command), url
        self._to_command, self._to_url = Telling(waits_s), Telling(waits_s)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Hand an event on, without waiting for anybody."""
        if self.command:
            self._to_command.hand_on(partial(_run, self.command, json.dumps(event)))
        if self.url:
            self._to_url.hand_on(partial(post, self.url, event))

    def problems(self) -> list[str]:
        """Return what went wrong since the last call."""
        return [*self._to_command.problems(), *self._to_url.problems()]

    def finish(self, timeout_s: float) -> bool:
        """Wait until every event is delivered or given up, and return whether none waits any more."""
        return self._to_command.finish(timeout_s) and self._to_url.finish(timeout_s)


def tried(command: Sequence[str], url: str | None, event: Mapping[str, Any]) -> list[str]:
    """Hand an event on once, and return what went wrong."""
    wrong = [_run(command, json.dumps(event)) if command else None, post(url, event) if url else None]
    return [problem for problem in wrong if problem]


def _run(command: Sequence[str], document: str) -> str | None:
    try:
        done = subprocess.run(
            command, input=document, text=True, capture_output=True, timeout=_COMMAND_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            problem = "took too long"
        else:
            problem = str(error.strerror)
        return f"{command[0]}: {problem}"
    if done.returncode:
        return f"{command[0]} ended with exit code {done.returncode}"
    return None
