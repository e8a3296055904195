"""Sampled answers of a real vLLM with and without its draft: both come from the same distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.real import PORT, PROFILE, gemmaspec, up
from tools.tiny.talk import TALK

URL = f"http://127.0.0.1:{PORT}/v1"
BEGINNINGS = ("Hello Hello", " the the the")
"""Nonsense, after which several words are likely, and others for the draft than for the target."""
SHOWN = ("Hello", "What are you?", "Why is the sky blue?", "hi, what are you", "Please tell me why the sky is blue.")
"""What README and the guides ask, and what somebody else might."""
ANSWERS = 150
HOT = 1.5
RARE = 10
"""Answers that come less often, of both servers together, are counted as one."""
FALSE_ALARMS = 1e-4
"""How often the test fails although nothing is wrong."""


def asked(beginning: str, **more: Any) -> str:
    """Three tokens; with a draft all but the first are drafted."""
    return str(sent("completions", prompt=beginning, max_tokens=3, **more)["text"])


def said(question: str, **more: Any) -> str:
    """A whole reply."""
    message = {"role": "user", "content": question}
    return str(sent("chat/completions", messages=[message], max_tokens=60, **more)["message"]["content"])


def sent(where: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{URL}/{where}", json={"model": "tiny", **body}, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def times(number: int, ask: Callable[[], str]) -> Counter[str]:
    """How often each answer comes."""
    with ThreadPoolExecutor(4) as several:
        return Counter(several.map(lambda _: ask(), range(number)))


def seen() -> dict[tuple[str, float], Counter[str]]:
    return {(text, t): times(ANSWERS, partial(asked, text, temperature=t)) for text in BEGINNINGS for t in (1.0, HOT)}


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
        drafted, greedy = seen(), [asked(text, temperature=0) for text in BEGINNINGS]
        for body in ({}, {"temperature": 0.7}, {"top_k": 64}, {"top_k": 64, "top_p": 0.95}):
            assert said(SHOWN[0], **body)  # none of these ends the server
        whole = {question: times(20, partial(said, question)) for question in SHOWN}
        assert up("process", "--no-spec").code == 0
        alone = seen()
        assert greedy == [asked(text, temperature=0) for text in BEGINNINGS]
    finally:
        gemmaspec("down", PROFILE)
    assert all(list(replies.values()) == [20] for replies in whole.values()), whole
    assert {next(iter(replies)) for replies in whole.values()} <= {reply for _, reply in TALK}
    chances = {key: same(drafted[key], alone[key]) for key in drafted}
    assert min(chances.values()) > FALSE_ALARMS, (chances, drafted, alone)
    assert all(len(answers) > 1 for answers in drafted.values()), drafted
