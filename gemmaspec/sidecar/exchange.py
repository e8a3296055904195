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
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


class NotConnected(OSError):
    """There is no connection, so that nothing was sent."""


class TooLong(ValueError):
    """The body is longer than wanted."""


class _Reader(io.RawIOBase):
    """What arrives on a socket until a deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)


class _Bounded:
    """What http.client needs of a socket. The one who opened the socket closes it."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def sendall(self, content: bytes) -> None:
        """Send everything before the deadline, which Python counts for all of it."""
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(content)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return what arrives."""
        assert mode == "rb"
        return io.BufferedReader(_Reader(self._sock, self._deadline))

    def close(self) -> None:
        """Do nothing: http.client closes before it has read everything."""


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
    """Send a request to an address and return the status and the body; what goes to an https address goes through TLS.

    `most` bytes of the body are read at most; with 0, none. Proxies and redirects are not followed.
    Raises TimeoutError after `timeout_s` seconds in all, NotConnected, TooLong, OSError and http.client.HTTPException
    for a connection that breaks or an answer that is not HTTP, ValueError for a wrong address or header.
    """
    deadline = time.monotonic() + timeout_s
    if not all(value.isascii() and value.isprintable() for value in (headers or {}).values()):
        raise ValueError("a header is not printable ASCII")
    parts = urlsplit(address)
    host, secure = parts.hostname or "", parts.scheme == "https"
    connection = http.client.HTTPConnection(host, parts.port or (443 if secure else 80))
    with contextlib.closing(_connected(host, connection.port, deadline, secure=secure)) as sock:
        connection.sock = _Bounded(sock, deadline)
        sent = {"Connection": "close", **(headers or {})}
        connection.request(method, path, body=body, headers=sent)
        reply = connection.getresponse()
        found = reply.read(most + 1) if most else b""
    if len(found) > most:
        raise TooLong(f"more than {most} bytes")
    if most and reply.length:  # http.client returns what came before the connection broke
        raise http.client.IncompleteRead(found, reply.length)
    return reply.status, found


def _connected(host: str, port: int, deadline: float, *, secure: bool) -> socket.socket:
    sock = None
    try:
        sock = socket.create_connection((host, port), timeout=_left(deadline))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_left(deadline))
        return _trusted().wrap_socket(sock, server_hostname=host) if secure else sock
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


def _left(deadline: float) -> float:
    """Return the seconds until a deadline. Raises TimeoutError once it is past."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
