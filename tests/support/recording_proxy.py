"""A proxy before a real server that notes when it passed on which answer, so that a client can be held against that."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.beside import served


class RecordingProxy(ThreadingHTTPServer):
    """Passes every request on to one server, and its answer back as it comes."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.lock = threading.Lock()
        self.spans: list[tuple[str, float, float, float, int]] = []
        """Of each streamed answer: its prompt, when it was asked, its first and its last token, and how many it has."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: RecordingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

    def _pass_on(self, body: bytes | None) -> None:
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=300)
        with contextlib.closing(behind):
            asked = time.perf_counter()
            behind.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = behind.getresponse()
            kind = answer.getheader("Content-Type") or ""
            self.send_response(answer.status)
            self.send_header("Content-Type", kind)
            if body and kind.startswith("text/event-stream"):
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self._stream(json.loads(body), answer, asked)
                return
            content = answer.read()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _stream(self, body: dict[str, Any], answer: http.client.HTTPResponse, asked: float) -> None:
        times, tokens = [], 0
        while line := answer.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                if event["choices"]:  # also without text: a special token has none, and took its time
                    times.append(time.perf_counter())
            self._chunk(line)
        if times:
            with self.server.lock:
                text = str(body["messages"][-1]["content"])
                self.server.spans.append((text, asked, times[0], times[-1], tokens))
        self._chunk(b"")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def recording_proxy(port: int) -> Iterator[RecordingProxy]:
    """A running proxy before the server on a port of this machine."""
    with served(RecordingProxy(port)) as running:
        yield running
