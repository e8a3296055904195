"""Checks of texts: repetition, long prompts, the prefix cache, the text as without speculation, sampled tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gemmaspec.measure.smoke.check import (
    Ask,
    Judged,
    Received,
    ServerOffer,
    Work,
    failed,
    passed,
    shown,
    unknown,
    where,
)
from gemmaspec.measure.smoke.questions import QUESTIONS, book, chat
from gemmaspec.measure.smoke.texts import loop, variety
from gemmaspec.measure.smoke.thinking import (
    _after_tool,
    _as_long,
    _clean,
    _cut_thought,
    _has_content,
    _s1,
    _s2,
    _s3,
    _s4,
    _s6,
    _s8,
    _thought_apart,
)
from gemmaspec.run.engine.answer import FEW, ChatAnswer, unlikely

_VARIETY: Final = 0.5
_ESSAYS: Final = (
    "Describe an ordinary morning in a small harbour town.",
    "Explain how a bicycle stays upright.",
    "What happens to water when it freezes, and why does ice float?",
)
_LONG: Final = 6000
_LADDER: Final = (6_000, 32_000)
"""Tokens of prompts, besides half of the longest context: a compressed cache may forget beyond some length."""
_CACHED: Final = 2000
_NEEDLE: Final = "The word of the day in the harbour office is TAMARISK."
_AS_GOOD: Final = 0.8
_GAP: Final = 0.5
"""Nats: two tokens that are closer may change places by rounding alone."""

_ENOUGH: Final = 20
_CERTAIN: Final = ("Count from one to twenty, in words.", "Name the seven days of the week, in order.")


def _s11(offer: ServerOffer) -> Sequence[Ask]:
    essays = [Ask(key=f"text {n + 1}", body=chat(text, tokens=192)) for n, text in enumerate(_ESSAYS[: offer.together])]
    return [*essays, Ask(key="needle", body=_word_in(offer, _LONG))]


def _word_in(offer: ServerOffer, length: int) -> dict[str, Any]:
    """Return the question for a word in the middle of a prompt of so many tokens."""
    text = f"{book(_entries(offer, length), needle=_NEEDLE)}\nWhat is the word of the day? Answer with that word alone."
    return chat(text, tokens=16)


def _room(offer: ServerOffer, wanted: int) -> int:
    """Return how many tokens a long prompt may have: half of the longest context at most."""
    return min(wanted, offer.max_len // 2)


def _entries(offer: ServerOffer, wanted: int) -> int:
    return int(_room(offer, wanted) / offer.entry_tokens)


def _sound(received: Received) -> Judged:
    shares = []
    for ask, answer in received.pairs():
        if ask.key == "needle":
            continue
        share = variety(answer.content)
        if repeated := loop(answer.content):
            return failed(f"{repeated} ({where(ask)}): {shown(answer.content)}", ask.key)
        if share is not None and share <= _VARIETY:
            return failed(f"{share:.0%} of the runs of four words are different: {shown(answer.content)}", ask.key)
        shares += [share] if share is not None else []
    needle = received.answers["needle"]
    length = _room(received.offer, _LONG)
    if "TAMARISK" not in needle.content.upper():
        return failed(f"a word in a prompt of about {length} tokens was not found: {shown(needle.content)}", "needle")
    if not shares:
        return unknown("no answer was long enough to judge", "text 1")
    return passed(f"{min(shares):.0%} of the runs of four words are different; a word found in {length} tokens")


def _lengths(offer: ServerOffer) -> Sequence[int]:
    half = offer.max_len // 2
    return sorted({min(length, half) for length in (*_LADDER, half)})


def _s19(offer: ServerOffer) -> Sequence[Ask]:
    return [Ask(key=f"{length:,} tokens", body=_word_in(offer, length), alone=True) for length in _lengths(offer)]


def _remembered(received: Received) -> Judged:
    read: list[str] = []
    for ask, answer in received.pairs():
        if answer.fault:
            late = f"{ask.key} took longer than one request may, or than all"
            return unknown(f"{late}; a word was found in {', '.join(read)}" if read else late, ask.key)
        if "TAMARISK" not in answer.content.upper():
            return failed(f"a word in {ask.key} was not found: {shown(answer.content)}", ask.key)
        read.append(ask.key)
    return passed(f"a word was found in {', '.join(read)}")


def _s12(offer: ServerOffer) -> Sequence[Ask]:
    text = (
        f"{book(_entries(offer, _CACHED))}\nLeave the logbook aside. What is 19 times 23? Answer with the number alone."
    )
    return [Ask(key=key, body=chat(text, tokens=32), alone=True) for key in ("first", "second")]


def _cached(received: Received) -> Judged:
    first, second = received.answers["first"], received.answers["second"]
    if first.content.strip() != second.content.strip():
        texts = f"{shown(first.content, 70)!r}, then {shown(second.content, 70)!r}"
        return failed(f"the same prompt is answered differently from the cache: {texts}", "second")
    if not first.content.strip():
        return unknown("the answers are empty", "second")
    if second.cached == 0:
        return unknown("the second prompt was not read from the cache", "second")
    if first.length and second.length and second.length < _AS_GOOD * first.length:
        drop = f"acceptance length {first.length:.2f}, then {second.length:.2f}"
        return failed(f"the draft is worse on a cached prompt: {drop}", "second")
    return passed(f"the same answer twice: {shown(second.content, 60)}")


def _s17(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    return [Ask(key=f"question {n}", body=chat(text, tokens=16, **more)) for n, text in enumerate(QUESTIONS, 1)]


def _parity(received: Received) -> Judged:
    moved: list[str] = []
    for ask, answer in received.pairs():
        other = received.reference.get(ask.key)
        if other is None or other.fault or not other.tokens or not answer.tokens:
            return unknown("one of the two servers gave no log-probabilities", ask.key)
        place = _difference(answer, other)
        if place is None:
            continue
        gap = _gap(answer, other, place)
        text = f"{ask.key}, token {place + 1}, {'gap unknown' if gap is None else f'{gap:.2f} nats'}"
        if gap is None or gap >= _GAP:
            return failed(f"another token than without speculation where two are not close: {text}", ask.key)
        moved.append(text)
    same = f"{len(received.asks) - len(moved)} of {len(received.asks)} greedy texts are those without speculation"
    return passed(f"{same}{f'; the others part where two tokens are close: {moved[0]}' if moved else ''}")


def _difference(answer: ChatAnswer, other: ChatAnswer) -> int | None:
    for place, (mine, theirs) in enumerate(zip(answer.tokens, other.tokens, strict=False)):
        if mine.text != theirs.text:
            return place
    short = min(len(answer.tokens), len(other.tokens))
    if len(answer.tokens) != len(other.tokens):
        return short - 1
    return None


def _gap(answer: ChatAnswer, other: ChatAnswer, place: int) -> float | None:
    """Return the smaller of the two sides' gaps between the likeliest tokens, in nats."""
    gaps = (answer.tokens[place].gap, other.tokens[place].gap)
    return min((gap for gap in gaps if gap is not None), default=None)


def _s20(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    body = {"temperature": 1, "logprobs": True}
    return [Ask(key=f"text {n}", body={**chat(text, tokens=36), **body}) for n, text in enumerate(_CERTAIN, 1)]


def _likely(received: Received) -> Judged:
    total = rare = 0
    for ask, answer in received.pairs():
        known = sum(token.logprob is not None for token in answer.tokens)
        strange = unlikely(answer.tokens)
        if len(strange) > FEW:
            seen = f"{len(strange)} of {known} sampled tokens have a probability under 0.001"
            return failed(f"{seen}, the first {shown(strange[0], 30)!r}: {shown(answer.content)}", ask.key)
        total, rare = total + known, rare + len(strange)
    if total < _ENOUGH:
        return unknown("the answers have too few tokens with log-probabilities", "text 1")
    return passed(f"{rare} of {total} sampled tokens have a probability under 0.001")


WORK: Final[Mapping[str, Work]] = {
    "S1": (_s1, _thought_apart),
    "S2": (_s2, _after_tool),
    "S3": (_s3, _has_content),
    "S4": (_s4, _clean),
    "S6": (_s6, _cut_thought),
    "S8": (_s8, _as_long),
    "S11": (_s11, _sound),
    "S12": (_s12, _cached),
    "S17": (_s17, _parity),
    "S19": (_s19, _remembered),
    "S20": (_s20, _likely),
}
"""What each check asks, and its judge."""
