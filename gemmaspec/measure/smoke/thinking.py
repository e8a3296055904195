"""Checks of thoughts: that they stay out of the answer, and that the answer comes out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gemmaspec.measure.smoke.check import (
    Ask,
    Judged,
    Received,
    ServerOffer,
    failed,
    passed,
    shown,
    unknown,
    where,
)
from gemmaspec.measure.smoke.questions import WEATHER, after_tool, chat
from gemmaspec.measure.smoke.texts import leak

_LENGTH: Final = 0.8


def twice(key: str, body: dict[str, object], offer: ServerOffer) -> list[Ask]:
    """Return a request that is sent alone, and again with others where the server runs several at once."""
    alone = [Ask(key=f"{key} alone", body=body, alone=True)]
    if offer.together > 1:
        return [*alone, Ask(key=f"{key} with others", body=body)]
    return alone


def no_leak(received: Received) -> Judged | None:
    """Return a failure if an answer holds what belongs to the chat format."""
    for ask, answer in received.pairs():
        if leaked := leak(answer.content):
            return failed(f"{leaked} ({where(ask)}): {shown(answer.content)}", ask.key)
    return None


def _s1(offer: ServerOffer) -> Sequence[Ask]:
    return twice("17x23", chat("What is 17 times 23? Think briefly.", tokens=128, thinking=True), offer)


def _thought_apart(received: Received) -> Judged:
    if bad := no_leak(received):
        return bad
    thoughts = [answer.reasoning for _, answer in received.pairs() if answer.reasoning.strip()]
    if not thoughts:
        return unknown("no answer had a thought")
    return passed(f"{len(thoughts)} of {len(received.asks)} answers with a thought, kept apart")


def _s2(offer: ServerOffer) -> Sequence[Ask]:
    whole = Ask(key="whole alone", body=after_tool(stream=False), alone=True)
    return [*twice("stream", after_tool(stream=True), offer), whole]


def _after_tool(received: Received) -> Judged:
    if bad := no_leak(received):
        return bad
    if not any(answer.content or answer.reasoning for _, answer in received.pairs()):
        return unknown("no answer had a text")
    return passed("no marker and no thought in the answers after a tool's result")


def _s3(offer: ServerOffer) -> Sequence[Ask]:
    return twice("trivial", chat("Say hello, and nothing else.", tokens=80, thinking=True, stream=True), offer)


def _has_content(received: Received) -> Judged:
    ended = [(ask, answer) for ask, answer in received.pairs() if answer.finish == "stop"]
    for ask, answer in ended:
        if not answer.content.strip():
            return failed(f"ended with an empty content ({where(ask)}); reasoning: {shown(answer.reasoning)}", ask.key)
    if ended:
        return passed("each answer that ended has a content")
    return unknown("no answer ended within 80 tokens")


def _s4(offer: ServerOffer) -> Sequence[Ask]:
    return [
        *twice("hi", chat("Just say hi.", tokens=24, tools=[WEATHER]), offer),
        *twice("hi stream", chat("Just say hi.", tokens=24, stream=True, tools=[WEATHER]), offer),
    ]


def _clean(received: Received) -> Judged:
    if bad := no_leak(received):
        return bad
    if not any(answer.content for _, answer in received.pairs()):
        return unknown("no answer had a text")
    return passed("no marker in the answers")


def _s6(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    hard = "Prove that there are infinitely many primes, and think about each step at length."
    return [Ask(key="cut", body=chat(hard, tokens=48, thinking=True), alone=True)]


def _cut_thought(received: Received) -> Judged:
    ((ask, answer),) = received.pairs()
    if leaked := leak(answer.content):
        return failed(f"{leaked}: {shown(answer.content)}", ask.key)
    if answer.finish != "length":
        return unknown(f"the answer was not cut off (finish_reason {answer.finish or 'missing'})", ask.key)
    if not answer.content and not answer.reasoning:
        return failed("a thought that max_tokens cuts off leaves content and reasoning empty", ask.key)
    return passed("a thought that max_tokens cuts off comes as reasoning")


def _s8(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    joke = "Tell me a very short joke."
    return [
        Ask(key="stream", body=chat(joke, tokens=64, thinking=True, stream=True), alone=True),
        Ask(key="whole", body=chat(joke, tokens=64, thinking=True), alone=True),
    ]


def _as_long(received: Received) -> Judged:
    (ask, streamed), (_, whole) = received.pairs()
    lengths = [len(answer.reasoning) + len(answer.content) for answer in (streamed, whole)]
    if not lengths[1]:
        return unknown("the answer that was not streamed is empty")
    if lengths[0] < _LENGTH * lengths[1]:
        end = shown(streamed.content or streamed.reasoning)
        return failed(f"{lengths[0]} characters streamed, {lengths[1]} not streamed: {end}", ask.key)
    return passed(f"{lengths[0]} characters streamed, {lengths[1]} not streamed")
