"""Greedy answers of a real server, piece by piece."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from tests.support.real import PORT

URL = f"http://127.0.0.1:{PORT}"
QUESTIONS = ("Count from one to twenty, in words.", "And what is this?", "Explain it to the quick brown fox.", "Why?")
TOKENS = 96


@dataclass(frozen=True)
class Streamed:
    text: str
    tokens: int
    finish: str


def stream(question: str, client: httpx.Client | None = None) -> Streamed:
    """One greedy answer of TOKENS tokens, piece by piece."""
    if client is None:
        with httpx.Client(timeout=300, trust_env=False) as own:
            return stream(question, own)
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    text, tokens, finish = "", 0, ""
    with client.stream("POST", f"{URL}/v1/chat/completions", json=body) as reply:
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
