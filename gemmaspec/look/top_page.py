"""`top`: live readings of the running stacks, also as one page on the loopback interface (`top --web`)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import psutil

from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.live.board import Board, GpuLoad, View, document
from gemmaspec.core.live.window import NOW_S, History
from gemmaspec.measure.load import AT_ONCE, together
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.groups import each_of
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.kept.verdicts import hang_of, last_verdicts
from gemmaspec.run.machine import nvidia
from gemmaspec.run.ready.first_request import LOOK_S, api_key_for, read_metrics


@dataclass(kw_only=True)
class _Watched:
    """One stack, with what is kept between two readings."""

    started: Started
    history: History = field(default_factory=History)
    report: dict[str, Any] | None = None


class Top:
    """Reads stacks repeatedly and keeps ten minutes of their counters."""

    def __init__(self, names: Sequence[str]) -> None:
        """Watch the stacks of these names, or all that were started here; a profile's name means all its replicas.

        Raises UsageError if a name was not started on this machine.
        """
        watched = [stacks.find(name) for name in each_of(names)] if names else stacks.started_stacks()
        self._watched = [_Watched(started=stack) for stack in watched]
        self._gpus = _gpu_names()

    def look(self) -> Board:
        """Read every stack once. The column of a stack that does not answer shows why."""
        return Board(
            at=time.time(),
            views=tuple(together([partial(_view, watched) for watched in self._watched], at_once=AT_ONCE)),
            gpus=self._loads(),
            memory_available=psutil.virtual_memory().available,
        )

    def _loads(self) -> tuple[GpuLoad, ...]:
        if not self._gpus:
            return ()
        try:
            loads = nvidia.loads()
        except EnvironmentMissing:
            return tuple(GpuLoad(name=name) for name in self._gpus)
        return tuple(
            GpuLoad(
                name=name,
                clock_mhz=load.clock_mhz,
                power_w=load.power_w,
                temperature_c=load.temperature_c,
                memory_used=load.memory_used,
            )
            for name, load in zip(self._gpus, loads, strict=False)
        )


def _gpu_names() -> tuple[str, ...]:
    try:
        return tuple(gpu.name for gpu in nvidia.gpus())
    except EnvironmentMissing:
        return ()


def _view(watched: _Watched) -> View:
    server = watched.started.server
    try:
        sample = read_metrics(server, timeout_s=LOOK_S, api_key=api_key_for(server))
    except GemmaspecError as error:
        return View(
            name=server.name, engine=watched.started.engine, address=server.base_url, problem=_why(watched, error)
        )
    watched.history.add(sample)
    if watched.report is None:
        watched.report = _report(watched.started)
    hang = hang_of(watched.started, last_verdicts(watched.started))
    return View(
        name=server.name,
        engine=watched.started.engine,
        address=server.base_url,
        vllm=_version(watched.report),
        patches=_patches(watched.report),
        hang=hang,
        sample=sample,
        now=watched.history.over(NOW_S),
        lately=watched.history.over(float("inf")),
    )


def _why(watched: _Watched, error: GemmaspecError) -> str:
    """Return why a stack does not answer: the engine's state, or the request's failure."""
    try:
        state = stacks.engine_of(watched.started).state(watched.started.server)
    except GemmaspecError as unknown:
        return unknown.message
    if state.status == "running":
        return error.message
    return state.status


def _report(started: Started) -> dict[str, Any] | None:
    try:
        return stacks.engine_of(started).report(started.server)
    except GemmaspecError:
        return None


def _version(report: dict[str, Any] | None) -> str | None:
    version = report.get("vllm") if report else None
    if isinstance(version, dict) and "version" in version:
        return str(version["version"])[:40]
    return None


def _patches(report: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the patches that the launcher applied or found applied."""
    patches = report.get("patches") if report else None
    rows = patches if isinstance(patches, list) else []
    return tuple(
        str(row["patch"])[:80]
        for row in rows
        if isinstance(row, dict) and "patch" in row and row.get("state") in ("applies", "drifted", "applied")
    )


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
"""Connections at once. A browser opens a few; one that does not end its request is closed after HEARD_S."""
HEARD_S = 10.0
"""Seconds for a whole request, so that a client that sends a byte now and then holds no place."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, top: Top, *, port: int, interval: float) -> None:
        super().__init__((_HOST, port), _Handler)
        self.page = (data.TEMPLATES / "top.html").read_bytes()
        self._top, self._interval = top, interval
        self._lock = threading.Lock()
        self._taken, self._reading = float("-inf"), b""
        self._places = threading.BoundedSemaphore(_MOST_PAGES)
        self.unheard: dict[Any, float] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; the connection is closed if too many are open."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self.unheard[request] = time.monotonic() + HEARD_S
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.unheard.pop(request, None)
            self._places.release()

    def service_actions(self) -> None:
        """Cut off requests that have not ended in time; socketserver calls this twice a second."""
        for request, until in list(self.unheard.items()):
            if time.monotonic() > until:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

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
    timeout = HEARD_S

    def do_GET(self) -> None:
        self.server.unheard.pop(self.connection, None)
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
        same_origin = (
            len(hosts) == 1
            and hosts[0] in names
            and all(origin in [f"http://{name}" for name in names] for origin in origins)
        )
        linked = self.path == "/" and self.headers.get("Sec-Fetch-Mode") == "navigate"
        return same_origin and (site in ("none", "same-origin") or linked)

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
