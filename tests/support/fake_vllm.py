"""A fake of vLLM's streaming server: what a benchmark sees of it, at speeds and with failures that a test chooses."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.beside import served


class FakeVllm(ThreadingHTTPServer):
    """Answers each request with steps of `accepts` + 1 tokens, one chunk and `step_s` each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.step_s = 0.002
        self.k = 2
        """Drafted tokens; 0: it does not speculate."""
        self.accepts = 1
        self.max_model_len = 4096
        self.max_num_seqs = 64
        self.spans: list[tuple[str, float, float, float, int]] = []
        """Of each answer: its prompt, when it was asked, its first and its last token, and how many it has."""
        self.generated = 0
        self.drafts = 0
        self.foreign = 0
        """Tokens that somebody else gets with each request."""
        self.checked_during = ""
        """The question during which the container's health check asks for its one token, once."""
        self.dies_at: int | None = None
        """The request, from 1, in the middle of which the connection breaks."""
        self.refuses: tuple[int, str] | None = None
        self.without_usage = False
        self.garbage = False
        self.per_request = False
        self.burst = 1
        """Steps that it computes before it sends their chunks together."""
        self.held = False
        """Whether an answer is sent at its end, all at once, as something that buffers does."""
        self.decode_seconds: float | None = None
        """Seconds between the first and the last token of all answers, if it reports them."""
        self.prompt_s = 0.0
        """Seconds that a prompt takes, unless it is cached."""
        self.caches = False
        self.salts: set[str] = set()
        self.hits = 0
        """Tokens of prompts that were in the cache."""
        self.ids: dict[str, Any] = {}
        """Prompt → the ids of its answer, for who asks for them; each prompt itself is the id 1."""
        self.slows_down = 1.0
        """Factor on the step after each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metrics(self) -> str:
        lines = [f'vllm:generation_tokens_total{{engine="0"}} {self.generated}.0']
        lines.append(f'vllm:prefix_cache_hits_total{{engine="0"}} {self.hits}.0')
        if self.decode_seconds is not None:
            lines.append(f'vllm:request_decode_time_seconds_sum{{engine="0"}} {self.decode_seconds}')
        if self.k:
            lines += [
                f'vllm:spec_decode_num_drafts_total{{engine="0"}} {self.drafts}.0',
                f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {self.drafts * self.k}.0',
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {self.drafts * self.accepts}.0',
            ]
            for position in range(self.k):
                count = self.drafts if position < self.accepts else 0
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                lines.append(f'{name}{{engine="0",position="{position}"}} {count}.0')
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    server: FakeVllm
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._reply(200, self.server.metrics())
        elif self.path == "/version":
            self._json({"version": "0.32.0"})
        elif self.path == "/v1/models":
            self._json({"data": [{"id": "fake-model", "max_model_len": self.server.max_model_len}]})
        else:
            self._reply(404, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._json({"count": _tokens(body)})
            return
        with self.server.lock:
            self.server.bodies.append(body)
            number = len(self.server.bodies)
            self.server.step_s *= self.server.slows_down
        if self.server.refuses:
            status, said = self.server.refuses
            self._reply(status, json.dumps({"error": {"message": said}}))
            return
        if body.get("return_token_ids"):
            ids = self.server.ids.get(body["messages"][-1]["content"])
            self._json({"prompt_token_ids": [1], "choices": [{"token_ids": ids}]})
            return
        self._stream(body, dies=number == self.server.dies_at)

    def _stream(self, body: dict[str, Any], *, dies: bool) -> None:
        fake = self.server
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._kept = [] if fake.held else None
        wanted, sent, steps = body.get("max_tokens") or body["max_completion_tokens"], 1, 0
        asked = time.perf_counter()
        cached = fake.caches and body["cache_salt"] in fake.salts
        with fake.lock:
            fake.hits += _tokens(body) if cached else 0
            fake.salts.add(body.get("cache_salt", ""))
        time.sleep(fake.step_s + (0 if cached else fake.prompt_s))
        first = time.perf_counter()
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]})
        while sent < wanted:
            if steps % fake.burst == 0:
                time.sleep(fake.step_s * fake.burst)
            new = min(fake.accepts + 1 if fake.k else 1, wanted - sent)
            sent, steps = sent + new, steps + 1
            if dies and steps == 3:
                self.close_connection = True
                self.connection.close()
                return
            if fake.garbage and steps == 3:
                self._chunk(b"data: {nonsense\n\n")
            self._event({"choices": [{"index": 0, "delta": {"content": "b" * new}}]})
        kept, self._kept = self._kept, None
        for content in kept or ():
            self._chunk(content)
        last = time.perf_counter()
        with fake.lock:
            if fake.decode_seconds is not None:
                fake.decode_seconds += last - first
            fake.spans.append((str(body["messages"][-1]["content"]), asked, first, last, sent))
            fake.generated += sent + fake.foreign
            if body["messages"][-1]["content"] == fake.checked_during:
                fake.generated, fake.checked_during = fake.generated + 1, ""
            fake.drafts += steps if fake.k else 0
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if not fake.without_usage:
            usage = {"prompt_tokens": _tokens(body), "completion_tokens": sent}
            self._event({"choices": [], "usage": usage, **self._own_metrics(steps)})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _own_metrics(self, steps: int) -> dict[str, Any]:
        if not self.server.per_request:
            return {}
        histogram = [steps if i == self.server.accepts else 0 for i in range(self.server.k + 1)]
        return {"metrics": {"speculative_decoding": {"acceptance_histogram": histogram}}}

    def _event(self, value: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    _kept: list[bytes] | None = None

    def _chunk(self, content: bytes) -> None:
        if self._kept is not None:
            self._kept.append(content)
            return
        with contextlib.suppress(OSError):
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

    def _json(self, value: dict[str, Any]) -> None:
        self._reply(200, json.dumps(value))

    def _reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def _tokens(body: dict[str, Any]) -> int:
    """Four characters are a token here."""
    return sum(len(str(one["content"])) for one in body["messages"]) // 4 + 5


@contextlib.contextmanager
def fake_vllm() -> Iterator[FakeVllm]:
    """A running fake."""
    with served(FakeVllm()) as running:
        yield running
