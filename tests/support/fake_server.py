"""A fake of vLLM's HTTP server, for misbehaviour that a real one cannot be made to show on demand."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gemmaspec.run.engine.server import Server
from tests.support.beside import served


class FakeServer(ThreadingHTTPServer):
    """Answers like vLLM; its attributes say how it misbehaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        """Path, headers and JSON body of each request."""
        self.drafted = 0
        self.drafts_per_answer = 10
        self.generated = 0
        self.tokens_per_answer = 30
        """So many the engine counts for an answer."""
        self.health = 200
        self.status = 200
        self.body: bytes | None = None
        """Sent for a chat completion in place of a good one."""
        self.message: dict[str, Any] = {"role": "assistant", "content": "one two three"}
        self.finish_reason: Any = "stop"
        self.sampled_finish = ""
        """How answers end that were asked for with a temperature, if not like the others."""
        self.logprobs: list[float] = []
        """Of the tokens of each answer."""
        self.metrics: bytes | None = None
        self.metrics_in_turn: list[bytes] = []
        """What /metrics answers first, one after another."""
        self.hang_up = False
        self.slow = "nothing"
        """Paths that begin so get their answer after `slow_s` seconds; /health never does."""
        self.slow_s = 3.0
        self.seconds_per_byte = 0.0
        self.location: str | None = None

    @property
    def port(self) -> int:
        """The port on which it answers."""
        return int(self.server_address[1])

    def server(self, *, speculates: bool = True, looks_up: bool = False, needs_api_key: bool = False) -> Server:
        """The stack that this is the server of."""
        return Server(
            name="fake",
            folder=Path("/nonexistent"),
            port=self.port,
            model="tiny",
            speculates=speculates,
            looks_up=looks_up,
            needs_api_key=needs_api_key,
        )

    def completion(self) -> bytes:
        """A chat completion in vLLM's words."""
        choice = {"index": 0, "message": self.message, "finish_reason": self.finish_reason}
        if self.logprobs:
            choice["logprobs"] = {"content": [{"token": f" {n}", "logprob": x} for n, x in enumerate(self.logprobs)]}
        usage = {"prompt_tokens": 21, "completion_tokens": 30, "total_tokens": 51}
        return json.dumps({"id": "chatcmpl-1", "choices": [choice], "usage": usage}).encode()

    def counters(self) -> bytes:
        """Four draft tokens for each draft, two of them accepted."""
        rows = {
            "generation_tokens": self.generated, "spec_decode_num_drafts": self.drafted,
            "spec_decode_num_draft_tokens": 4 * self.drafted, "spec_decode_num_accepted_tokens": 2 * self.drafted,
        }  # fmt: skip
        return "".join(
            f'vllm:{name}_total{{engine="0",model_name="tiny"}} {count}.0\n' for name, count in rows.items()
        ).encode()


class Handler(BaseHTTPRequestHandler):
    """One request to the fake."""

    server: FakeServer

    def do_GET(self) -> None:
        self._note(None)
        self._wait()
        if self.path == "/health":
            self._reply(self.server.health, b"")
        elif self.path == "/metrics":
            self._reply(200, self._metrics())
        else:
            self._reply(404, b"")

    def _metrics(self) -> bytes:
        if self.server.metrics_in_turn:
            return self.server.metrics_in_turn.pop(0)
        return self.server.counters() if self.server.metrics is None else self.server.metrics

    def do_POST(self) -> None:
        self._wait()
        self._note(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.hang_up:
            self.close_connection = True
            return
        self.server.drafted += self.server.drafts_per_answer
        self.server.generated += self.server.tokens_per_answer
        asked = self.server.requests[-1][2]
        if self.server.sampled_finish and asked["temperature"]:
            self.server.finish_reason = self.server.sampled_finish
        self._reply(self.server.status, self.server.completion() if self.server.body is None else self.server.body)

    def _wait(self) -> None:
        if self.path.startswith(self.server.slow) and self.path != "/health":
            time.sleep(self.server.slow_s)

    def _note(self, body: Any) -> None:
        self.server.requests.append((self.path, dict(self.headers), body))

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if not self.server.seconds_per_byte or self.command == "GET":
                self.wfile.write(body)
                return
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(self.server.seconds_per_byte)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A running fake."""
    with served(FakeServer()) as running:
        yield running
