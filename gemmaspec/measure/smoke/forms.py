"""Checks of forms: tool calls, and JSON under a schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel

from gemmaspec.measure.smoke.check import (
    Ask,
    Judged,
    Need,
    Received,
    ServerOffer,
    failed,
    passed,
    shown,
    unknown,
    where,
)
from gemmaspec.measure.smoke.questions import (
    CITIES,
    STATION,
    TRAINS,
    WEATHER,
    Cities,
    City,
    chat,
    fits,
    two_calls,
    under_schema,
)
from gemmaspec.measure.smoke.texts import loop
from gemmaspec.measure.smoke.thinking import twice
from gemmaspec.run.engine.answer import ChatAnswer, Fault

_FUNCTIONS: Final = (STATION["function"], TRAINS["function"])
_REQUIRED: Final = {one["name"]: frozenset(one["parameters"]["required"]) for one in _FUNCTIONS}


def _s5(offer: ServerOffer) -> Sequence[Ask]:
    body = under_schema("Describe Paris. Think in one sentence.", City, tokens=128, thinking=True)
    streamed = under_schema("Describe Rome. Think in one sentence.", City, tokens=128, thinking=True, stream=True)
    return [*twice("thought", body, offer), Ask(key="stream", body=streamed)]


def _s9(offer: ServerOffer) -> Sequence[Ask]:
    asks = []
    for number, name in enumerate(CITIES[: 3 * offer.together]):
        every_other = number % 2 == 1
        body = under_schema(f"Describe {name}.", City, tokens=64, thinking=False, stream=every_other)
        asks.append(Ask(key=name, body=body))
    if Need.THINKING not in offer.lacks:
        for name in CITIES[: offer.together]:
            body = under_schema(f"Describe {name}.", City, tokens=96, thinking=True)
            asks.append(Ask(key=f"{name}, thought", body=body))
    return asks


def _all_fit(received: Received) -> Judged:
    return _fit(received, City)


def _fit(received: Received, schema: type[BaseModel]) -> Judged:
    """Judge answers under a schema: those that were cut off by max_tokens say nothing, unless they went astray."""
    bad: list[tuple[Ask, str]] = []
    cut = 0
    for ask, answer in received.pairs():
        wrong = _wrong(answer, schema)
        if wrong == "cut":
            cut += 1
        elif wrong:
            bad.append((ask, wrong))
    count = len(received.asks)
    if bad:
        ask, wrong = bad[0]
        return failed(f"{len(bad)} of {count} answers are wrong, the first ({where(ask)}): {wrong}", ask.key)
    if cut * 2 > count:
        return unknown(f"{cut} of {count} answers were cut off before their JSON was whole")
    off = f", {cut} cut off" if cut else ""
    if received.offer.together > 1:
        one_by_one = ""
    else:
        one_by_one = "; the server runs one request at a time"
    return passed(f"{count - cut} of {count} answers fit the schema{off}{one_by_one}")


def _wrong(answer: ChatAnswer, schema: type[BaseModel]) -> str | None:
    """Return what is wrong with an answer under a schema; "cut" for one that max_tokens ended, None for a good one."""
    text = answer.content
    if text.strip() and not text.lstrip().startswith("{"):
        return f"text before the JSON: {shown(text)}"
    if repeated := loop(text):
        return f"{repeated}: {shown(text)}"
    if answer.finish == "length":
        return "cut"
    if fits(schema, text):
        return None
    return f"does not fit the schema: {shown(text) or 'empty'}"


def _s10(offer: ServerOffer) -> Sequence[Ask]:
    thinking = Need.THINKING not in offer.lacks
    body = under_schema("Describe five cities of Italy.", Cities, tokens=384, thinking=thinking, stream=True)
    return [Ask(key="cities", body=body)]


def _ends(received: Received) -> Judged:
    ((ask, answer),) = received.pairs()
    if repeated := loop(answer.content) or loop(answer.reasoning):
        return failed(f"{repeated}, {answer.completion_tokens} tokens: {shown(answer.content)}", ask.key)
    if answer.finish == "length":
        return unknown("the answer was cut off after 384 tokens, without a loop", ask.key)
    return _fit(received, Cities)


def _s7(offer: ServerOffer) -> Sequence[Ask]:
    count = 12 * offer.together // 8 or 1
    streams = [Ask(key=f"stream {n}", body=two_calls(stream=True)) for n in range(1, count + 1)]
    alone = Ask(key="stream alone", body=two_calls(stream=True), alone=True)
    return [Ask(key="whole", body=two_calls(stream=False), alone=True), alone, *streams]


def _calls_whole(received: Received) -> Judged:
    whole = received.answers["whole"]
    if wrong := _wrong_calls(whole, whole):
        return failed(f"not streamed: {wrong}", "whole")
    streams = [(ask, answer) for ask, answer in received.pairs() if ask.streams]
    if not whole.calls and not any(answer.calls for _, answer in streams):
        return unknown(f"the model called no tool: {shown(whole.content)}", "whole")
    bad = []
    for ask, answer in streams:
        if wrong := _wrong_calls(answer, whole):
            bad.append((ask, wrong))
    if bad:
        ask, wrong = bad[0]
        return failed(f"{len(bad)} of {len(streams)} streams are wrong, the first ({where(ask)}): {wrong}", ask.key)
    if len(whole.calls) < 2:
        return unknown("the model called one tool instead of two", "whole")
    return passed(f"{len(streams)} streams with the same {len(whole.calls)} calls as without a stream")


def _wrong_calls(answer: ChatAnswer, whole: ChatAnswer) -> str | None:
    names = [call.name for call in answer.calls]
    wanted = [call.name for call in whole.calls]
    if names != wanted:
        return f"calls {', '.join(names) or 'none'}; without a stream {', '.join(wanted) or 'none'}"
    for call in answer.calls:
        arguments = call.parsed()
        if not call.named_first:
            return f"the first chunk of {shown(call.name, 60)} has no id or no name"
        if arguments is None or not _REQUIRED.get(call.name, frozenset()) <= arguments.keys():
            return f"the arguments of {shown(call.name, 60)} are {shown(call.arguments) or 'empty'}"
    return None


def _s15(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    return [Ask(key="auto", body=chat("Hello.", tokens=8, tools=[WEATHER], tool_choice="auto"), alone=True)]


def _tools_taken(received: Received) -> Judged:
    answer = received.answers["auto"]
    if answer.fault is Fault.REFUSED:
        return failed(f"requests with tools get HTTP {answer.status}: {shown(answer.said)}", "auto")
    return passed("a request with tools is answered")
