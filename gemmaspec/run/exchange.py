"""One HTTP exchange within one deadline: connecting, sending, headers and body together. Standard library only.

The timeout of a socket, and of clients that are built on it, begins anew with every byte: a server that sends one each
second holds them for ever.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

_PART: Final = 65536
"""Bytes of a body that are read at once."""


class NotConnected(OSError):
    """There is no connection, so that nothing was sent."""


class TooLong(ValueError):
    """The body is longer than wanted."""


@dataclass
class _Deadline:
    """When what goes on has to be over, by the monotonic clock."""

    at: float

    def left(self) -> float:
        """Return the seconds until then. Raises TimeoutError once it is past."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class _AnswerReader(io.RawIOBase):
    """What arrives on a socket until a deadline."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock, self._deadline = sock, deadline
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.left())
        count = self._sock.recv_into(buffer)
        self.ended = count == 0
        return count


class _Bounded:
    """What http.client needs of a socket. The one who opened the socket closes it."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock, self._deadline = sock, deadline
        self.answer = _AnswerReader(sock, deadline)

    def sendall(self, content: bytes) -> None:
        """Send everything before the deadline, which Python counts for all of it."""
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(content)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return what arrives."""
        assert mode == "rb"
        return io.BufferedReader(self.answer)

    def close(self) -> None:
        """Do nothing: http.client closes before it has read everything."""


class Arriving:
    """An answer, while its body arrives."""

    def __init__(self, reply: http.client.HTTPResponse, deadline: _Deadline, sent: float) -> None:
        self.status, self.sent = reply.status, sent
        self._reply, self._deadline = reply, deadline

    def wait(self, seconds: float) -> None:
        """Let the deadline be so many seconds from now."""
        self._deadline.at = time.monotonic() + seconds

    def parts(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Raises IncompleteRead if the connection breaks before its end."""
        left = self._reply.length
        while left != 0:
            part = self._reply.read1(_PART if left is None else min(left, _PART))
            if not part:
                break
            yield part
            left = None if left is None else left - len(part)
        if left:
            raise http.client.IncompleteRead(b"", left)


@contextlib.contextmanager
def opened(
    address: str,
    path: str,
    *,
    method: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    on_open: Callable[[socket.socket], None] = lambda _: None,
) -> Iterator[Arriving]:
    """Send a request to an address and yield the answer; what goes to an https address goes through TLS.

    `on_open` gets the socket, which another thread may shut down. Proxies and redirects are not followed.
    Raises TimeoutError after `timeout_s` seconds in all, NotConnected, OSError and http.client.HTTPException for a
    connection that breaks or an answer that is not HTTP, ValueError for a wrong address or header.
    """
    deadline = _Deadline(time.monotonic() + timeout_s)
    if not all(value.isascii() and value.isprintable() for value in (headers or {}).values()):
        raise ValueError("a header is not printable ASCII")
    parts = urlsplit(address)
    host, secure = parts.hostname or "", parts.scheme == "https"
    connection = http.client.HTTPConnection(host, parts.port or (443 if secure else 80))
    with contextlib.closing(_connected(host, connection.port, deadline, secure=secure)) as sock:
        on_open(sock)
        bounded = connection.sock = _Bounded(sock, deadline)
        sent = time.perf_counter()
        connection.request(method, path, body=body, headers={"Connection": "close", **(headers or {})})
        reply = connection.getresponse()
        # http.client takes headers that break off for whole ones: a server that dies would answer 200 to /health.
        if bounded.answer.ended:
            raise http.client.IncompleteRead(b"")
        yield Arriving(reply, deadline, sent)


def exchanged(
    address: str,
    path: str,
    *,
    method: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    most: int,
) -> tuple[int, bytes]:
    """Return the status and the body of an answer, of which `most` bytes are read at most; with 0, none.

    Raises what `opened` raises, and TooLong.
    """
    whole = b""
    with opened(address, path, method=method, body=body, headers=headers, timeout_s=timeout_s) as arriving:
        for part in arriving.parts() if most else ():
            whole += part
            if len(whole) > most:
                raise TooLong(f"more than {most} bytes")
        return arriving.status, whole


def _connected(host: str, port: int, deadline: _Deadline, *, secure: bool) -> socket.socket:
    sock = None
    try:
        sock = socket.create_connection((host, port), timeout=deadline.left())
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(deadline.left())
        if secure:
            return _trusted().wrap_socket(sock, server_hostname=host)
        return sock
    except TimeoutError:
        _closed(sock)
        raise
    except OSError as error:
        _closed(sock)
        raise NotConnected(str(error)) from None


def _trusted() -> ssl.SSLContext:
    """Return the authorities of the machine or image, and those of certifi, which vLLM's own packages bring."""
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _closed(sock: socket.socket | None) -> None:
    if sock:
        sock.close()
