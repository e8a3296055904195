"""Whether a server's engine still moves: what a container's health check asks, asked from this machine."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import GemmaspecError, TimedOut
from gemmaspec.core.launcher.probe import (
    Asked,
    NotYet,
    Slow,
    answers,
    read_state,
    write_state,
)
from gemmaspec.run.engine.http import exchange
from gemmaspec.run.engine.server import Server
from gemmaspec.run.ready.first_request import api_key_for

TOKEN_S: Final = 5.0
"""How long a server that has done nothing since the last look may take for one token."""


class _Asked(Asked):
    """A server of this machine in place of the one in a container."""

    def __init__(self, server: Server, deadline_s: float) -> None:
        super().__init__(server.bind, server.port, deadline_s)
        self.server = server
        self.deadline_s = deadline_s

    def _exchange(self, method: str, path: str, body: str | None, part: float = 1.0) -> str:
        assert method == ("POST" if body else "GET")
        sent = json.loads(body) if body else None
        key = api_key_for(self.server)
        try:
            reply = exchange(self.server.base_url, path, body=sent, timeout_s=self.deadline_s * part, api_key=key)
        except TimedOut:
            if path == "/metrics":
                raise Slow("the counters come late") from None
            raise
        if reply.status != 200:
            raise NotYet(f"{path} answers {reply.status}")
        return reply.body.decode("utf-8", "replace")


def hangs(server: Server, state: Path, *, deadline_s: float = TOKEN_S) -> bool:
    """Return whether a server gives no token in time, though nothing has moved since the last look.

    `state` is the file in which the last look is kept. One whose counters have moved, or that gave a token within the
    last minute, is not asked. Anything but silence, such as a refusal, is not a hang; nor are counters that come late,
    since the engine may work on.
    """
    asked = _Asked(server, deadline_s)
    try:
        seen = answers(asked, server.model, read_state(state))
    except TimedOut:
        return True
    except (GemmaspecError, NotYet, ValueError, KeyError, TypeError, RecursionError):
        return False
    if seen is not None:
        with contextlib.suppress(OSError):  # without it, the next look asks again
            write_state(state, seen)
    return False
