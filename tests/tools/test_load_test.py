"""The accounting of tools/load_test.py, against a fake server that streams, refuses, breaks off and lies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.support.fake_server import fake_server
from tools.health_cost import Block, Checking, cost, quantile
from tools.load_test import TOKENS, Counts, Kept, kinds, load


class Fake(ThreadingHTTPServer):
    """Streams answers; `fault` says what it does to every tenth good request."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault = fault
        self.seen = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Fake

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["max_tokens"] < 1 and self.server.fault != "accepts":
            self.send_error(400)
            return
        with self.server.lock:
            self.server.seen += 1
            faulty = self.server.seen % 10 == 0
        fault = self.server.fault if faulty else ""
        if fault == "500":
            self.send_error(500)
            return
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self._stream(fault)

    def _stream(self, fault: str) -> None:
        self._piece({"choices": [{"delta": {"content": "one"}, "finish_reason": None}]})
        self._piece({"choices": [{"delta": {"content": "two"}, "finish_reason": None}]})
        if fault == "breaks":
            return
        if fault == "error":
            self._piece({"error": {"message": "the engine died"}})
            return
        self._piece({"choices": [{"delta": {}, "finish_reason": "length"}]})
        tokens = TOKENS - 1 if fault == "short" else TOKENS
        self._piece({"choices": [], "usage": {"completion_tokens": tokens}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _piece(self, chunk: object) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(fault: str) -> Iterator[str]:
    with Fake(fault) as fake:
        threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{fake.server_address[1]}"
        fake.shutdown()


def loaded(fault: str) -> Counts:
    counts = Counts()
    with serving(fault) as address:
        asyncio.run(load(address, "tiny", total=60, together=8, counts=counts))
    return counts


def test_one_in_twenty_goes_away_and_one_in_a_hundred_is_bad() -> None:
    assert Counter(kinds(10_000)) == {"good": 9400, "cancelled": 500, "bad": 100}


def test_every_request_is_counted_once() -> None:
    counts = loaded("")
    assert (counts.answered, counts.cancelled, counts.refused, counts.lost) == (56, 3, 1, [])
    assert counts.total == 60
    assert len(counts.whole_s) == 56


@pytest.mark.parametrize("fault", ["500", "breaks", "error", "short"])
def test_what_ends_otherwise_is_lost(fault: str) -> None:
    counts = loaded(fault)
    assert counts.lost
    assert counts.total == 60
    assert counts.answered + counts.cancelled + counts.refused + len(counts.lost) == 60


def test_a_bad_request_that_is_accepted_is_lost_too() -> None:
    assert loaded("accepts").lost == ["bad: HTTP 200"]


def test_growth_is_a_leak_and_a_warm_up_is_not() -> None:
    flat = Kept(rss=[50, 90, *[100 * 1024**2] * 30], descriptors=[5] * 32)
    assert not flat.leaks()
    growing = Kept(rss=[turn * 2 * 1024**2 for turn in range(40)], descriptors=[5] * 40)
    assert growing.leaks()
    assert Kept(rss=[1] * 40, descriptors=list(range(40))).leaks()
    assert not Kept(rss=[1, 2], descriptors=[1, 9]).leaks()
    assert quantile([], 0.99) == 0
    assert quantile([1, 2, 3, 4], 0.5) == 3


def blocks(*seconds: float) -> list[Block]:
    return [Block(checked=turn % 2 == 0, began=0, seconds=one, tokens=100) for turn, one in enumerate(seconds)]


def test_the_cost_of_checks_is_a_share_of_the_time_without_them_and_a_drift_cancels_out() -> None:
    share, error, compared = cost(blocks(11, 10, 11, 10, 11), lambda block: block.seconds)
    assert (round(share, 6), round(error, 6), compared) == (0.1, 0.0, 3)
    drifting, _, _ = cost(blocks(100, 101, 102, 103, 104, 105), lambda block: block.seconds)
    assert drifting == pytest.approx(0, abs=1e-6)
    assert cost(blocks(1, 2), lambda block: block.seconds)[2] == 0


def test_the_checks_run_in_every_second_block_and_are_counted(tmp_path: Path) -> None:
    with fake_server() as fake:
        fake.metrics = b"vllm:generation_tokens_total 5\n"
        port = fake.server_address[1]
        words = ["answers", f"--port={port}", "--model=tiny", f"--state={tmp_path / 'state'}", "--deadline=5"]
        checking = Checking(f"http://127.0.0.1:{port}", words, 0.01, 0.05, [psutil.Process()])

        async def until_three() -> None:
            running = asyncio.create_task(checking.run())
            while len(checking.blocks) < 3:
                await asyncio.sleep(0.01)
            running.cancel()

        asyncio.run(until_three())
    assert [one.checked for one in checking.blocks[:3]] == [True, False, True]
    assert {code for _, code in checking.checks} == {0}
    assert checking.spent_s > 0


def test_no_request_is_sent_after_the_time_is_up() -> None:
    counts = Counts()
    asyncio.run(load("http://127.0.0.1:9", "tiny", total=60, together=8, counts=counts, seconds=0))
    assert counts.total == counts.kinds.total() == 0
