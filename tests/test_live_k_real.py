"""A real vLLM whose k changes while it serves: the same text, no request lost, and drafts of exactly that k."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from gemmaspec.deploy import live_k
from gemmaspec.live.sample import read_sample
from gemmaspec.ready.counters import SpecCounters, spec_counters
from tests.real import PORT, PROFILE, STATE, gemmaspec, up

pytestmark = pytest.mark.real_process

URL = f"http://127.0.0.1:{PORT}"
QUESTIONS = ("Count from one to twenty, in words.", "And what is this?", "Explain it to the quick brown fox.", "Why?")
TOKENS = 96


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    done = up("process", "--set", "speculative.live_k=true")
    assert done.code == 0, done.err
    assert done.json["answer"]["draft_tokens"] > 0  # ready means drafted, here as elsewhere
    yield
    gemmaspec("down", PROFILE)


@dataclass(frozen=True)
class Streamed:
    text: str
    tokens: int
    finish: str


def stream(question: str) -> Streamed:
    """One greedy answer of TOKENS tokens, piece by piece."""
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    text, tokens, finish = "", 0, ""
    with httpx.stream("POST", f"{URL}/v1/chat/completions", json=body, timeout=300, trust_env=False) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return Streamed(text=text, tokens=tokens, finish=finish)


def counters() -> SpecCounters:
    """What was drafted so far, once vLLM has counted it."""
    last = None
    while (
        now := spec_counters(read_sample(httpx.get(f"{URL}/metrics", timeout=120, trust_env=False).text, at=0.0))
    ) != last:
        last = now
        time.sleep(0.3)
    return now


def change(wish: str, monkeypatch: pytest.MonkeyPatch) -> live_k.Changed:
    monkeypatch.setenv("GEMMASPEC_STATE", str(STATE))
    return live_k.change(PROFILE, wish, lambda _: None, timeout_s=120)


def test_every_k_gives_the_same_text_and_drafts_exactly_so_many_tokens() -> None:
    texts = set()
    for wish, k in (("4", 4), ("2", 2), ("off", 0), ("auto", 4), ("1", 1), ("4", 4)):
        done = gemmaspec("k", PROFILE, wish, "--json")
        assert done.code == 0, done.err
        assert done.json["k"] == k
        before = counters()
        texts.add(stream(QUESTIONS[0]))
        added = counters().since(before)
        if k:
            # The answer's last step may draft past its end, and the first after a change still has the old k.
            assert added.draft_tokens == pytest.approx(k * added.drafts, abs=4)
            assert added.drafts > 0
        else:
            assert added.draft_tokens == 0
    (answer,) = texts
    assert answer.tokens == TOKENS
    assert answer.finish == "length"


def test_twenty_changes_under_concurrent_streams_lose_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {question: stream(question) for question in QUESTIONS}
    over = threading.Event()
    answers: list[tuple[str, Streamed]] = []

    def ask_again_and_again(question: str) -> None:
        while not over.is_set():
            answers.append((question, stream(question)))

    ks: list[int] = []
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        threads = [pool.submit(ask_again_and_again, question) for question in QUESTIONS]
        try:
            for _, wish in zip(range(20), cycle(("2", "off", "4", "1", "off", "auto", "3")), strict=False):
                ks.append(change(wish, monkeypatch).now.k)
                time.sleep(0.3)
        finally:
            over.set()
        for thread in threads:
            thread.result()
    assert ks == [2, 0, 4, 1, 0, 4, 3, 2, 0, 4, 1, 0, 4, 3, 2, 0, 4, 1, 0, 4]
    assert len(answers) >= len(QUESTIONS)
    assert [(question, answer) for question, answer in answers if answer != alone[question]] == []


def test_a_hostile_file_changes_nothing_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    change("2", monkeypatch)
    control = STATE / "stacks" / PROFILE / "k.json"
    try:
        for content in ("9", '{"k": 99}', '{"k": -1}', '{"k": true}', "[" * 4000, "x" * 100_000):
            control.write_text(content)
            stream(QUESTIONS[3])
        assert gemmaspec("k", PROFILE, "--json").json["k"] == 2
    finally:
        Path(control).unlink()
    told = [line for line in gemmaspec("logs", PROFILE).out.splitlines() if "live k:" in line]
    assert len(told) == 1, told
    assert "k stays 2" in told[0]
    assert change("auto", monkeypatch).now.k == 4


def test_status_shows_the_k_and_up_again_is_harmless_at_0() -> None:
    assert gemmaspec("k", PROFILE, "off").code == 0
    assert gemmaspec("status", PROFILE, "--json").json["stacks"][0]["live_k"]["k"] == 0
    again = up("process", "--set", "speculative.live_k=true")
    assert again.code == 0, again.err
    assert "already running" in again.err
    assert again.json["answer"]["draft_tokens"] == 0
    assert gemmaspec("k", PROFILE, "auto").code == 0
