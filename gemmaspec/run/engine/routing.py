"""Add replicas to a running HAProxy and take them out, through its runtime socket.

HAProxy 2.6: `set server`, `show stat` (management guide, 9.3).
"""

from __future__ import annotations

import csv
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.run.stack.router import ADMIN_SOCKET, BACKEND

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 4 * 1024 * 1024


class RouterError(GemmaspecError):
    """The router does not answer, or refuses a command."""


@dataclass(frozen=True, kw_only=True)
class RouterPlace:
    """One replica as the router knows it."""

    index: int
    """Counted from 1."""
    url: str


@dataclass(frozen=True, kw_only=True)
class Routed:
    """What the router says of a replica."""

    inside: bool
    """Whether it gets requests while it is healthy."""
    healthy: bool = False
    requests: int | None = None
    """Requests that the router has open there; None if the router does not say."""


class HaProxy:
    """The runtime commands of HAProxy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answers(self) -> bool:
        """Return whether the router takes commands. Raise RouterError if it cannot be reached."""
        return BACKEND in self._tell("show stat")

    def add(self, place: RouterPlace) -> None:
        """Have the router send requests to a replica; one that it has is left as it is. Raise RouterError."""
        self._set(place, "ready")

    def remove(self, place: RouterPlace) -> None:
        """Have the router send no new requests to a replica; those that it has go on. Raise RouterError."""
        self._set(place, "maint")

    def look(self, place: RouterPlace) -> Routed:
        """Return what the router says of a replica. Raise RouterError."""
        text = self._tell("show stat").removeprefix("# ")
        for row in csv.DictReader(text.splitlines()):
            if (row.get("pxname"), row.get("svname")) == (BACKEND, f"r{place.index}"):
                status, open_ = row.get("status") or "", row.get("scur") or ""
                return Routed(
                    inside=not status.startswith(("MAINT", "DRAIN")),
                    healthy=status.startswith("UP"),
                    requests=int(open_) if open_.isdecimal() else None,
                )
        raise RouterError(f"HAProxy knows no replica {place.index}")

    def _set(self, place: RouterPlace, state: str) -> None:
        refusal = self._tell(f"set server {BACKEND}/r{place.index} state {state}").strip()
        if refusal or self.look(place).inside != (state == "ready"):
            raise RouterError(f"HAProxy does not set replica {place.index} to {state}: {refusal[:200]}")

    def _tell(self, command: str) -> str:
        """Send one command. The socket is opened through its folder, since its path may be too long for a socket."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RouterError(f"cannot open {self._folder}: {error.strerror}") from None
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_TIMEOUT_S)
                connection.connect(f"/proc/self/fd/{folder}/{ADMIN_SOCKET}")
                connection.sendall(f"{command}\n".encode())
                answer = b""
                while (chunk := connection.recv(65536)) and len(answer) < _MOST_BYTES:
                    answer += chunk
                return answer.decode("utf-8", "replace")
        except OSError as error:
            why = f"no answer within {_TIMEOUT_S:.0f} s" if isinstance(error, TimeoutError) else error.strerror
            raise RouterError(f"HAProxy does not answer at {self._folder / ADMIN_SOCKET}: {why}") from None
        finally:
            os.close(folder)
