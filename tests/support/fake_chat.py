"""A fake of vLLM's chat completions, over real HTTP: it answers each smoke request well, and badly in one way if told."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gemmaspec.run.engine.server import Server
from tests.support.beside import served

MODEL = "tiny"
TEXT = (
    "A harbour wakes slowly while gulls circle above wet ropes and crates of silver fish wait beside the quay "
    "until somebody with strong coffee unlocks the office, reads yesterday's log and rings the small brass bell."
)
CITY = {"city": "Oslo", "country": "Norway", "inhabitants": 700000, "on_a_river": False}
CALLS = (
    ("call_1", "get_station", '{"city": "Milano"}'),
    ("call_2", "get_station", '{"city": "Piacenza"}'),
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the fake answers to one request."""

    content: str | None = TEXT
    reasoning: str = ""
    calls: tuple[tuple[str | None, str | None, str], ...] = ()
    finish: str = "stop"
    model: str = MODEL
    status: int = 200
    said: str = ""
    raw: bytes | None = None
    """Sent in place of all this."""
    endless: bool = False
    hangs_up: bool = False
    gap: float = 1.0
    unlikely: int = 0
    """Tokens, from the first on, that hardly anybody would choose."""
    drafts: int = 10
    accepted: int = 30

    def but(self, **changes: Any) -> Reply:
        """The same, with changes."""
        return dataclasses.replace(self, **changes)


Spoil = Callable[[dict[str, Any], Reply, "FakeChat"], Reply]


def good(body: dict[str, Any]) -> Reply:
    """A good answer to a smoke request."""
    text = _text(body)
    thinks = body["chat_template_kwargs"]["enable_thinking"]
    reply = Reply(reasoning="The user asks something simple." if thinks else "")
    if body["model"] != MODEL:
        return Reply(status=404, said="The model does not exist.")
    if "infinitely many primes" in text:
        return reply.but(content=None, reasoning=TEXT, finish="length")
    if form := body.get("response_format"):
        one = CITY if form["json_schema"]["name"] == "city" else {"cities": [CITY] * 3}
        return reply.but(content=json.dumps(one))
    if "trains" in text:
        return reply.but(content=None, calls=CALLS, finish="tool_calls")
    if "TAMARISK" in text:
        return reply.but(content="TAMARISK")
    return reply.but(content="437") if "19 times 23" in text else reply


def _text(body: dict[str, Any]) -> str:
    return json.dumps([one.get("content") for one in body["messages"]])


class FakeChat(ThreadingHTTPServer):
    """Answers like vLLM, spoiled by one function if there is one."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, spoil: Spoil | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spoil = spoil
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.dead = False
        self.drafts = self.accepted = self.generated = self.hits = 0
        self.caches = True
        self.speculates = True
        self.lock = threading.Lock()

    def server(self, *, needs_api_key: bool = False) -> Server:
        """The stack that this is the server of."""
        return Server(
            name="fake", folder=Path("/nonexistent"), port=self.server_address[1], model=MODEL,
            speculates=self.speculates, needs_api_key=needs_api_key,
        )  # fmt: skip

    def metrics(self) -> bytes:
        """The counters, as far as smoke reads them."""
        rows = {"generation_tokens_total": self.generated, "prefix_cache_hits_total": self.hits}
        if self.speculates:
            rows |= {
                "spec_decode_num_drafts_total": self.drafts,
                "spec_decode_num_draft_tokens_total": 4 * self.drafts,
                "spec_decode_num_accepted_tokens_total": self.accepted,
            }
        return "".join(f'vllm:{name}{{engine="0"}} {value}.0\n' for name, value in rows.items()).encode()


class Handler(BaseHTTPRequestHandler):
    """One request to the fake."""

    server: FakeChat
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, self.server.metrics())
        elif self.path == "/v1/models":
            self._send(200, json.dumps({"data": [{"id": MODEL, "max_model_len": 16384}]}).encode())
        elif self.path == "/version":
            self._send(200, b'{"version": "0.32.0+cpu"}')
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.hits += 1024 * (self.server.caches and body in self.server.seen)
            self.server.seen.append(body)
            self.server.headers.append(dict(self.headers))
            self.server.in_flight += 1
            self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
        try:
            reply = good(body)
            if self.server.spoil:
                reply = self.server.spoil(body, reply, self.server)
        finally:
            with self.server.lock:  # before the client has the answer, and asks again
                self.server.in_flight -= 1
        with contextlib.suppress(ConnectionError):
            self._answer(body, reply)

    def _answer(self, body: dict[str, Any], reply: Reply) -> None:
        if self.server.dead or reply.hangs_up:
            self.close_connection = True
            return
        if reply.status != 200:
            self._send(reply.status, json.dumps({"error": {"message": reply.said}}).encode())
            return
        with self.server.lock:
            self.server.generated += 40
            self.server.drafts += reply.drafts if self.server.speculates else 0
            self.server.accepted += reply.accepted if self.server.speculates else 0
        if reply.raw is not None:
            self._send(200, reply.raw)
        elif body["stream"] or reply.endless:
            self._stream(reply)
        else:
            self._send(200, json.dumps(whole(reply)).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in chunks(reply):
            self._chunk(event)
        while reply.endless:
            self._chunk({"choices": [{"index": 0, "delta": {"content": " on and on"}}]})
            time.sleep(0.01)
        self._part(b"data: [DONE]\n\n")
        self._part(b"")

    def _chunk(self, event: dict[str, Any]) -> None:
        self._part(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _part(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, *_: object) -> None:
        pass


USAGE = {"prompt_tokens": 20, "completion_tokens": 40}


def whole(reply: Reply) -> dict[str, Any]:
    """A reply as one document."""
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
        for id_, name, text in reply.calls
    ]
    message = {"role": "assistant", "content": reply.content, "reasoning": reply.reasoning or None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": _logprobs(reply)}
    return {"model": reply.model, "choices": [choice], "usage": USAGE}


def _logprobs(reply: Reply) -> dict[str, Any]:
    words = (reply.content or "").split()
    top = [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.1 - reply.gap}]
    own = [-9.0] * reply.unlikely + [-0.1] * len(words)
    rows = zip(words, own, strict=False)
    return {"content": [{"token": word, "logprob": value, "top_logprobs": top} for word, value in rows]}


def chunks(reply: Reply) -> Iterator[dict[str, Any]]:
    """A reply as the events of a stream: text in halves, a call's name before its arguments."""

    def event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"model": reply.model, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    for key, text in (("reasoning", reply.reasoning), ("content", reply.content or "")):
        half = len(text) // 2
        yield from (event({key: part}) for part in (text[:half], text[half:]) if part)
    for index, (id_, name, text) in enumerate(reply.calls):
        yield event({"tool_calls": [{"index": index, "id": id_, "function": {"name": name, "arguments": ""}}]})
        yield event({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    yield event({}, reply.finish)
    yield {"choices": [], "usage": USAGE}


@contextlib.contextmanager
def fake_chat(spoil: Spoil | None = None) -> Iterator[FakeChat]:
    """A running fake."""
    with served(FakeChat(spoil)) as running:
        yield running
