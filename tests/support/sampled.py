"""Sampled answers of a real vLLM with and without its draft: both come from the same distribution."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.real import PORT
from tools.tiny.talk import TALK

URL = f"http://127.0.0.1:{PORT}/v1"
BEGINNINGS = {"Hello Hello": 1.0, " the the the": 1.5}
"""Nonsense, after which several words are likely, and others for the draft than for the target; each with a temperature."""
SHOWN = ("Hello", "What are you?", "Why is the sky blue?", "hi, what are you", "Please tell me why the sky is blue.")
"""What README and the guides ask, and what somebody else might."""
ANSWERS = 150
REPLIES = 6
RARE = 10
"""Answers that come less often, of both servers together, are counted as one."""
FALSE_ALARMS = 1e-4
"""How often a comparison fails although nothing is wrong."""


def asked(beginning: str, number: int = 1, **more: Any) -> Counter[str]:
    """How often each three tokens come; with a draft all but the first are drafted."""
    choices = sent("completions", prompt=beginning, max_tokens=3, n=number, **more)
    return Counter(choice["text"] for choice in choices)


def said(question: str, number: int = 1, **more: Any) -> Counter[str]:
    """How often each whole reply comes."""
    message = {"role": "user", "content": question}
    choices = sent("chat/completions", messages=[message], max_tokens=60, n=number, **more)
    return Counter(choice["message"]["content"] for choice in choices)


def sent(where: str, **body: Any) -> list[dict[str, Any]]:
    """All answers of one request: together they take a tenth of the time that each takes alone."""
    answer = httpx.post(f"{URL}/{where}", json={"model": "tiny", **body}, timeout=300, trust_env=False)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    assert len(choices) == body["n"]
    return choices


def same(one: Counter[str], other: Counter[str]) -> float:
    """Return how likely two samples of one distribution differ as much as these: chi-squared, by Wilson and Hilferty."""
    common = [text for text in {*one, *other} if one[text] + other[text] >= RARE]
    pairs = [(one[text], other[text]) for text in common]
    pairs.append((ANSWERS - sum(a for a, _ in pairs), ANSWERS - sum(b for _, b in pairs)))
    found = [(a - b) ** 2 / (a + b) for a, b in pairs if a + b]
    free = len(found) - 1
    if not free:
        return 1.0
    z = ((sum(found) / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return math.erfc(z / math.sqrt(2)) / 2


@dataclass(frozen=True)
class Sampled:
    """What a server answers by lot, and what greedily."""

    chance: dict[str, Counter[str]]
    greedy: list[Counter[str]]


def answers() -> Sampled:
    """Ask the running server."""
    chance = {text: asked(text, ANSWERS, temperature=t) for text, t in BEGINNINGS.items()}
    return Sampled(chance, [asked(text, temperature=0) for text in BEGINNINGS])


def replies_are_whole() -> None:
    """With a draft, whatever the sampling: none of these ends the server or cuts a reply of the toy."""
    for body in ({}, {"temperature": 0.7}, {"top_k": 64}, {"top_k": 64, "top_p": 0.95}):
        assert all(said(SHOWN[0], **body))
    whole = {question: said(question, REPLIES) for question in SHOWN}
    assert all(list(replies.values()) == [REPLIES] for replies in whole.values()), whole
    assert {next(iter(replies)) for replies in whole.values()} <= {reply for _, reply in TALK}


def same_distribution(drafted: Sampled, alone: Sampled) -> None:
    """Hold the answers of a server with a draft against those of its target alone."""
    assert drafted.greedy == alone.greedy
    chances = {key: same(drafted.chance[key], alone.chance[key]) for key in drafted.chance}
    assert min(chances.values()) > FALSE_ALARMS, (chances, drafted, alone)
    assert all(len(found) > 1 for found in drafted.chance.values()), drafted
