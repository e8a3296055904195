"""A real vLLM whose k follows the number of requests: the same text as at any k, and drafts as the table says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.heads import counters
from tests.support.streamed import QUESTIONS, TOKENS, stream

FLAGS = ("--set", "speculative.k_by_requests={1: 4, 3: 2}")


def follows_the_number_of_requests_and_the_text_does_not() -> None:
    before = counters()
    alone = {question: stream(question) for question in QUESTIONS}
    added = counters().since(before)
    assert added
    # an answer's last step may draft past its end
    assert added.drafted == pytest.approx(4 * added.drafts, abs=4 * len(QUESTIONS))

    # A tiny model answers in the time that a client takes to be made, so the requests share one and are many.
    asked = QUESTIONS * 4
    before = counters()
    with httpx.Client(timeout=300, trust_env=False) as client, ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda question: stream(question, client), asked))
    added = counters().since(before)
    assert added
    assert together == [alone[question] for question in asked]
    assert {one.tokens for one in alone.values()} == {TOKENS}
    # three requests and more draft 2 each; when all but two are over, these draft 4 again
    assert 2 <= added.drafted / added.drafts < 3.5
