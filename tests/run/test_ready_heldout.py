"""Servers that look right and are not, and servers that look wrong and are right, before the first request's judge."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.run.engine.server import Server
from gemmaspec.run.ready import first_request
from tests.support.beside import served
from tests.support.fake_server import FakeServer, fake_server

probe = partial(first_request.probe, settle_s=0.0)


class Pages:
    """Pages of /metrics: rows of a model's counters, and how they go on with each page or answer."""

    def __init__(self, vllm: FakeServer) -> None:
        self.vllm = vllm
        self.generated = 1000

    def page(
        self, *, drafts: float, generated: float, drafted: float | None = None, accepted: float | None = None
    ) -> bytes:
        """One page of the model `tiny`."""
        drafted = drafts * 4 if drafted is None else drafted
        accepted = drafts * 2 if accepted is None else accepted
        rows = {
            "generation_tokens": generated, "spec_decode_num_drafts": drafts,
            "spec_decode_num_draft_tokens": drafted, "spec_decode_num_accepted_tokens": accepted,
        }  # fmt: skip
        return b"".join(f'vllm:{name}_total{{model_name="tiny"}} {value}\n'.encode() for name, value in rows.items())

    def then(self, before: bytes, after: bytes) -> None:
        """Answer one page before the question, and another for ever after it."""
        self.vllm.metrics_in_turn, self.vllm.metrics = [before], after


@pytest.fixture
def vllm() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


def counts_on_without_a_draft(vllm: FakeServer) -> None:
    """The draft is off; whatever answers /metrics counts drafts by the clock."""
    pages = Pages(vllm)
    pages.then(pages.page(drafts=10, generated=1000), pages.page(drafts=900, generated=1030))


def counts_of_another_model(vllm: FakeServer) -> None:
    vllm.drafts_per_answer = 0
    other = [f'vllm:spec_decode_num_draft_tokens_total{{model_name="other"}} {n}\n'.encode() for n in (4, 400)]
    vllm.metrics_in_turn = [vllm.counters() + other[0]]
    vllm.metrics = vllm.counters() + other[1]


def text_from_a_cache(vllm: FakeServer) -> None:
    """The engine made nothing of the text; somebody else's request drafted a little meanwhile."""
    vllm.drafts_per_answer, vllm.tokens_per_answer = 2, 6


def counters_of_another_port(vllm: FakeServer) -> None:
    """A server that idles: its counters stand, however high."""
    vllm.metrics = Pages(vllm).page(drafts=5000, generated=15000)


def counters_that_fall(vllm: FakeServer) -> None:
    pages = Pages(vllm)
    pages.then(pages.page(drafts=500, generated=1500), pages.page(drafts=10, generated=30))


def one_counter_that_falls(vllm: FakeServer) -> None:
    pages = Pages(vllm)
    pages.then(pages.page(drafts=500, generated=1500), pages.page(drafts=510, generated=900))


def more_accepted_than_drafted(vllm: FakeServer) -> None:
    pages = Pages(vllm)
    pages.then(pages.page(drafts=0, generated=0), pages.page(drafts=10, generated=50, drafted=40, accepted=400))


def more_drafts_than_tokens(vllm: FakeServer) -> None:
    pages = Pages(vllm)
    pages.then(pages.page(drafts=0, generated=0), pages.page(drafts=64, generated=30))


def a_name_that_collides(vllm: FakeServer) -> None:
    vllm.drafts_per_answer = 0
    names = [f'vllm:spec_decode_num_draft_tokens_total_by_router{{a="b"}} {n}\n'.encode() for n in (4, 400)]
    vllm.metrics_in_turn = [vllm.counters() + names[0]]
    vllm.metrics = vllm.counters() + names[1]


def only_names_that_collide(vllm: FakeServer) -> None:
    vllm.metrics = b'vllm:spec_decode_num_draft_tokens_total_by_router{a="b"} 7\n'


def counters(value: str) -> Callable[[FakeServer], None]:
    def spoil(vllm: FakeServer) -> None:
        vllm.metrics = vllm.counters() + f'vllm:spec_decode_num_drafts_total{{engine="1"}} {value}\n'.encode()

    spoil.__name__ = f"a counter of {value}"
    return spoil


def completion(**changes: Any) -> Callable[[FakeServer], None]:
    def spoil(vllm: FakeServer) -> None:
        document = json.loads(vllm.completion())
        document.update({key: value for key, value in changes.items() if key in ("usage", "error")})
        document["choices"][0].update({key: value for key, value in changes.items() if key not in ("usage", "error")})
        vllm.body = json.dumps(document).encode()

    spoil.__name__ = f"an answer with {changes}"
    return spoil


def a_stream_that_nobody_asked_for(vllm: FakeServer) -> None:
    vllm.body = b'data: {"choices": [{"delta": {"content": "one"}}]}\n\n'


def sampled_answers_that_are_aborted(vllm: FakeServer) -> None:
    """Greedy requests are answered; those with a temperature end in the middle."""
    vllm.sampled_finish = "abort"


def an_answer_that_is_cut(vllm: FakeServer) -> None:
    vllm.body = vllm.completion()[:-40]


WRONG: list[tuple[Callable[[FakeServer], None], str]] = [
    (counts_on_without_a_draft, "/metrics contradicts itself: 30 tokens, but 890 drafts of 3560 tokens"),
    (counts_of_another_model, "does not draft"),
    (text_from_a_cache, "has 30 tokens, but /metrics counts 6: the text is not from this engine"),
    (counters_of_another_port, "does not draft"),
    (counters_that_fall, "the counters of /metrics fell during the first request"),
    (one_counter_that_falls, "the counters of /metrics fell during the first request"),
    (more_accepted_than_drafted, "with 400 accepted"),
    (more_drafts_than_tokens, "30 tokens, but 64 drafts"),
    (a_name_that_collides, "does not draft"),
    (only_names_that_collide, "the counters of /metrics cannot be read"),
    (counters("-1"), "cannot be read"),
    (counters("NaN"), "cannot be read"),
    (counters("+Inf"), "cannot be read"),
    (counters("1e300"), "cannot be read"),
    (completion(usage=None), "has 0 tokens by its own count"),
    (completion(usage={"completion_tokens": 999_999_999}), "has 999999999 tokens by its own count, of 1 to 48"),
    (completion(finish_reason="content_filter"), "ended with 'content_filter'"),
    (a_stream_that_nobody_asked_for, "not a chat completion"),
    (sampled_answers_that_are_aborted, "with temperature 1 an answer ended with 'abort'"),
    (an_answer_that_is_cut, "not a chat completion"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_a_server_that_looks_right_and_is_not(vllm: FakeServer, spoil: Callable[[FakeServer], None], said: str) -> None:
    vllm.drafted = 100
    spoil(vllm)
    with pytest.raises(GemmaspecError) as caught:
        probe(vllm.server(), timeout_s=10)
    assert said in caught.value.message


class _Odd(BaseHTTPRequestHandler):
    """Hands on what the fake answers, in ways in which proxies do."""

    server: Odd
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._hand_on(b"")

    def do_POST(self) -> None:
        self._hand_on(self.rfile.read(int(self.headers["Content-Length"])))

    def _hand_on(self, body: bytes) -> None:
        odd, vllm = self.server, self.server.vllm
        if self.path == "/metrics":
            text = vllm.counters()
        else:
            vllm.drafted, vllm.generated = vllm.drafted + 10, vllm.generated + 30
            text = vllm.completion()
            time.sleep(odd.slow_s)
        text = odd.changed(text)
        if odd.continues:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\nVia: 1.1 x\r\n\r\n")
        self.send_response(200)
        for name, value in odd.added:
            self.send_header(name, value)
        if odd.chunk:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for place in range(0, len(text), odd.chunk):
                part = text[place : place + odd.chunk]
                self.wfile.write(f"{len(part):x};ext=1\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\nX-Trailer: 1\r\n\r\n")
            return
        if odd.until_it_closes:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


class Odd(ThreadingHTTPServer):
    """Something before a right server."""

    daemon_threads = True

    def __init__(self, vllm: FakeServer, **ways: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Odd)
        self.vllm = vllm
        self.slow_s: float = ways.get("slow_s", 0.0)
        self.chunk: int = ways.get("chunk", 0)
        self.added: list[tuple[str, str]] = ways.get("added", [])
        self.changed: Callable[[bytes], bytes] = ways.get("changed", bytes)
        self.until_it_closes: bool = ways.get("until_it_closes", False)
        self.continues: bool = ways.get("continues", False)


def also_of_another_model(text: bytes) -> bytes:
    """The page of two models, of which the other one was started anew: its counters fall from page to page."""
    if b"vllm:" not in text:
        return text
    return text + f'vllm:generation_tokens_total{{model_name="other"}} {10**9 - time.monotonic_ns() % 10**9}\n'.encode()


def beside_strange_names(text: bytes) -> bytes:
    """A metric of another program begins with the name of one of vLLM's, and is negative or no number."""
    if b"vllm:" not in text:
        return text
    return text + b'vllm:generation_tokens_total_drift{a="b"} -3\nvllm:kv_cache_usage_perc_delta NaN\n'


RIGHT: dict[str, dict[str, Any]] = {
    "a slow first answer": {"slow_s": 0.5},
    "a proxy that adds headers": {"added": [("Via", "1.1 x"), ("Set-Cookie", "a=b"), ("X-Long", "y" * 8000)]},
    "a chunk for every byte": {"chunk": 1},
    "a body that ends with the connection": {"until_it_closes": True},
    "an answer that begins with 100 Continue": {"continues": True},
    "line ends of another system": {"changed": lambda text: text.replace(b"\n", b"\r\n")},
    "pages of two models": {"changed": also_of_another_model},
    "metrics of another program": {"changed": beside_strange_names},
    "spaces around the JSON": {"changed": lambda text: b"\n \n" + text + b"\n\n"},
    "fields that nobody knows": {"changed": lambda text: text.replace(b'"usage"', b'"kv_transfer": null, "usage"')},
}


@pytest.mark.parametrize("ways", RIGHT.values(), ids=RIGHT)
def test_a_server_that_looks_wrong_and_is_right(vllm: FakeServer, ways: dict[str, Any]) -> None:
    vllm.drafted = 100
    with served(Odd(vllm, **ways)) as odd:
        server = Server(
            name="fake", folder=vllm.server().folder, port=odd.server_address[1], model="tiny", speculates=True
        )
        answer = probe(server, timeout_s=10)
    assert (answer.text, answer.drafts, answer.counted) == ("one two three", 10, 30)
