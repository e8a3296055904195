"""Add replicas to a running router and take them out: vllm-router's HTTP commands, HAProxy's runtime socket.

vllm-router 0.1.17: POST /add_worker and /remove_worker with ?url=, GET /workers. A removed worker finishes the streams
that it has; adding one that is there answers 400, removing one that is not answers 200. No key protects them.
HAProxy 2.6: `set server`, `show stat` (management guide, 9.3).
"""

from __future__ import annotations

import csv
import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.checkpoint.fields import printable
from gemmaspec.engine.http import exchange
from gemmaspec.errors import GemmaspecError, StartFailed, TimedOut
from gemmaspec.profile.router import RouterKind
from gemmaspec.stack.router import ADMIN_SOCKET, BACKEND

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 4 * 1024 * 1024
_UNREADABLE: Final = "vllm-router's list of workers cannot be read"


class RouterError(GemmaspecError):
    """The router does not answer, or refuses a command."""


@dataclass(frozen=True, kw_only=True)
class Place:
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


class Routing(ABC):
    """Who gets requests."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the router takes commands. Raise RouterError if it cannot be reached."""

    @abstractmethod
    def add(self, place: Place) -> None:
        """Have the router send requests to a replica; one that it has is left as it is. Raise RouterError."""

    @abstractmethod
    def remove(self, place: Place) -> None:
        """Have the router send no new requests to a replica; those that it has go on. Raise RouterError."""

    @abstractmethod
    def strangers(self, known: Collection[str]) -> tuple[str, ...]:
        """Return the URLs that get requests and are not among the `known` ones. Raise RouterError."""

    @abstractmethod
    def evict(self, url: str) -> None:
        """Have the router send no more requests to a stranger. Raise RouterError."""

    @abstractmethod
    def look(self, place: Place) -> Routed:
        """Return what the router says of a replica. Raise RouterError."""


def routing(kind: RouterKind, base_url: str, folder: Path) -> Routing:
    """Return what speaks to a router of this kind."""
    return HaProxy(folder) if kind == "haproxy" else VllmRouter(base_url)


class VllmRouter(Routing):
    """The commands of vllm-router."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    def answers(self) -> bool:
        return self._ask("GET", "/liveness")[0] == 200

    def add(self, place: Place) -> None:
        if self.look(place).inside:
            return
        status, text = self._ask("POST", "/add_worker", url=place.url)
        if status != 200 and "already exists" not in text:
            raise RouterError(f"vllm-router does not add {place.url}: HTTP {status} {text[:200]}")

    def remove(self, place: Place) -> None:
        status, text = self._ask("POST", "/remove_worker", url=place.url)
        if status != 200 or self.look(place).inside:
            raise RouterError(f"vllm-router does not remove {place.url}: HTTP {status} {text[:200]}")

    def strangers(self, known: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(set(self._workers()) - set(known)))

    def evict(self, url: str) -> None:
        status, text = self._ask("POST", "/remove_worker", url=url)
        if status != 200 or url in self._workers():
            raise RouterError(f"vllm-router does not remove {printable(url)}: HTTP {status} {printable(text)}")

    def look(self, place: Place) -> Routed:
        try:
            ours = self._workers().get(place.url)
            if ours is None:
                return Routed(inside=False)
            return Routed(inside=True, healthy=bool(ours["is_healthy"]), requests=int(ours["load"]))
        except (ValueError, KeyError, TypeError):
            raise RouterError(_UNREADABLE) from None

    def _workers(self) -> dict[str, dict[str, Any]]:
        """Return URL → what the router says of each worker."""
        status, text = self._ask("GET", "/workers")
        try:
            found: list[dict[str, Any]] = json.loads(text)["workers"] if status == 200 else []
            return {str(one["url"]).rstrip("/"): one for one in found}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RouterError(_UNREADABLE) from None

    def _ask(self, method: str, path: str, **query: str) -> tuple[int, str]:
        try:
            reply = exchange(self._base_url, path, method=method, query=query, timeout_s=_TIMEOUT_S)
        except (StartFailed, TimedOut):
            raise RouterError(f"vllm-router does not answer {path} at {self._base_url}") from None
        return reply.status, reply.body.decode("utf-8", "replace")


class HaProxy(Routing):
    """The runtime commands of HAProxy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answers(self) -> bool:
        return BACKEND in self._tell("show stat")

    def add(self, place: Place) -> None:
        self._set(place, "ready")

    def remove(self, place: Place) -> None:
        self._set(place, "maint")

    def strangers(self, known: Collection[str]) -> tuple[str, ...]:  # noqa: ARG002 - as the other router's
        return ()  # its servers are those of its configuration, and only its owner can open its socket

    def evict(self, url: str) -> None:
        raise RouterError(f"HAProxy has no server {printable(url)}")

    def look(self, place: Place) -> Routed:
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

    def _set(self, place: Place, state: str) -> None:
        said = self._tell(f"set server {BACKEND}/r{place.index} state {state}").strip()
        if said or self.look(place).inside != (state == "ready"):
            raise RouterError(f"HAProxy does not set replica {place.index} to {state}: {said[:200]}")

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
            raise RouterError(f"HAProxy does not answer at {self._folder / ADMIN_SOCKET}: {error.strerror}") from None
        finally:
            os.close(folder)
