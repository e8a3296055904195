"""Sampled answers of a real vLLM with and without its draft: both come from the same distribution."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.real import PORT, PROFILE, gemmaspec, up

URL = f"http://127.0.0.1:{PORT}/v1/chat/completions"
QUESTIONS = ("Count from one.", "Hello")
ANSWERS = 150
HOT = 3.0
RARE = 10
"""Answers that come less often, of both servers together, are counted as one."""
FALSE_ALARMS = 1e-4
"""How often the test fails although nothing is wrong."""


def asked(question: str, **more: Any) -> str:
    """Three tokens; with a draft all but the first are drafted."""
    message = {"role": "user", "content": question}
    body = {"model": "tiny", "messages": [message], "max_tokens": 3, **more}
    answer = httpx.post(URL, json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def answers(question: str, **more: Any) -> Counter[str]:
    """How often each answer comes."""
    with ThreadPoolExecutor(4) as several:
        return Counter(several.map(lambda _: asked(question, **more), range(ANSWERS)))


def seen() -> dict[tuple[str, float], Counter[str]]:
    """A temperature at which the toy says many things, and one at which it says few."""
    return {(question, t): answers(question, temperature=t) for question in QUESTIONS for t in (1.0, HOT)}


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


def test_two_samples_are_told_apart() -> None:
    even, odd = Counter({"a": 75, "b": 75}), Counter({"a": 110, "b": 40})
    assert same(even, even) > 0.5
    assert same(even, Counter({"a": 80, "b": 70})) > 0.1
    assert same(even, odd) < FALSE_ALARMS


@pytest.mark.real_process
def test_a_sampled_answer_is_the_targets_own() -> None:
    try:
        assert up("process").code == 0
        drafted, greedy = seen(), [asked(question, temperature=0) for question in QUESTIONS]
        for body in ({}, {"temperature": 0.7}, {"top_k": 64}, {"top_k": 64, "top_p": 0.95}):
            assert asked(QUESTIONS[0], **body)  # none of these ends the server
        assert up("process", "--no-spec").code == 0
        alone = seen()
        assert greedy == [asked(question, temperature=0) for question in QUESTIONS]
    finally:
        gemmaspec("down", PROFILE)
    chances = {key: same(drafted[key], alone[key]) for key in drafted}
    assert min(chances.values()) > FALSE_ALARMS, (chances, drafted, alone)
    assert len(drafted[QUESTIONS[0], HOT]) > 1, "a high temperature shows more than one answer"
