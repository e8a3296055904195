"""`top --web`: one page on the loopback interface, and its readings."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from gemmaspec import data
from gemmaspec.deploy.views.top import Top
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.live.board import document

_HOST: Final = "127.0.0.1"
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'"
)
"""The page is one file and connects to nothing but this server."""


@contextlib.contextmanager
def serve(top: Top, *, port: int, interval: float) -> Iterator[str]:
    """Serve the page and its readings, and yield the address.

    It listens on 127.0.0.1 only, because it has no key. A new reading is taken at most every `interval` seconds,
    however many pages are open. Raises EnvironmentMissing if the port is in use.
    """
    try:
        server = _Server(top, port=port, interval=interval)
    except OSError as error:
        raise EnvironmentMissing(
            f"cannot listen on {_HOST}:{port}: {error.strerror}", hint="gemmaspec top --web --port 0"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{_HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


_MOST_PAGES: Final = 32
"""Connections at once. A browser opens a few; one that says nothing is closed after the handler's `timeout`."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, top: Top, *, port: int, interval: float) -> None:
        super().__init__((_HOST, port), _Handler)
        self.page = (data.TEMPLATES / "top.html").read_bytes()
        self._top, self._interval = top, interval
        self._lock = threading.Lock()
        self._taken, self._reading = float("-inf"), b""
        self._places = threading.BoundedSemaphore(_MOST_PAGES)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; the connection is closed if too many are open."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""

    def reading(self) -> bytes:
        """Return the newest reading as JSON, taken now unless the last one is fresh."""
        with self._lock:
            if time.monotonic() - self._taken >= self._interval:
                self._reading = json.dumps(document(self._top.look())).encode()
                self._taken = time.monotonic()
            return self._reading


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "gemmaspec", ""
    timeout = 10

    def do_GET(self) -> None:
        if not self._is_own():
            self._reply(403, "text/plain", b"this page is served under its own address only\n")
        elif self.path == "/":
            self._reply(200, "text/html; charset=utf-8", self.server.page)
        elif self.path == "/reading.json":
            self._reply(200, "application/json", self.server.reading())
        else:
            self._reply(404, "text/plain", b"not found\n")

    do_HEAD = do_GET  # noqa: N815 (the name is http.server's)

    def _is_own(self) -> bool:
        """Return whether the request names this server, and is not one that another site's page sends."""
        hosts, origins = self.headers.get_all("Host", []), self.headers.get_all("Origin", [])
        names = self._own_names()
        site = self.headers.get("Sec-Fetch-Site", "none")
        own = (
            len(hosts) == 1
            and hosts[0] in names
            and all(one in [f"http://{name}" for name in names] for one in origins)
        )
        return own and (site in ("none", "same-origin") or self.headers.get("Sec-Fetch-Mode") == "navigate")

    def _own_names(self) -> tuple[str, ...]:
        """Return the accepted Host headers, which exclude other names that point here (DNS rebinding)."""
        port = self.server.server_address[1]
        return (f"{_HOST}:{port}", f"localhost:{port}")

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", _POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because there is a request every second."""
