"""All checks, and how long they take at most.

Checks of forms: tool calls, and JSON under a schema.

Checks of the server: images with a draft, refused parameters, the model that answers, drafting.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import UsageError
from gemmaspec.measure.smoke import texture
from gemmaspec.measure.smoke.check import (
    Ask,
    Check,
    Judged,
    Need,
    Received,
    ServerOffer,
    Work,
    failed,
    passed,
    shown,
    skipped,
    unknown,
    where,
)
from gemmaspec.measure.smoke.texture import loop, twice
from gemmaspec.run.engine.answer import (
    CITIES,
    STATION,
    TRAINS,
    WEATHER,
    ChatAnswer,
    Cities,
    City,
    Fault,
    chat,
    fits,
    two_calls,
    under_schema,
)

_REQUIRED: Final = {
    tool["function"]["name"]: frozenset(tool["function"]["parameters"]["required"]) for tool in (STATION, TRAINS)
}


def _s5(offer: ServerOffer) -> Sequence[Ask]:
    body = under_schema("Describe Paris. Think in one sentence.", City, tokens=128, thinking=True)
    streamed = under_schema("Describe Rome. Think in one sentence.", City, tokens=128, thinking=True, stream=True)
    return [*twice("thought", body, offer), Ask(key="stream", body=streamed)]


def _s9(offer: ServerOffer) -> Sequence[Ask]:
    plain = [
        Ask(key=name, body=under_schema(f"Describe {name}.", City, tokens=64, thinking=False, stream=number % 2 == 1))
        for number, name in enumerate(CITIES[: 3 * offer.together])
    ]
    if Need.THINKING in offer.lacks:
        return plain
    return [
        *plain,
        *(
            Ask(key=f"{name}, thought", body=under_schema(f"Describe {name}.", City, tokens=96, thinking=True))
            for name in CITIES[: offer.together]
        ),
    ]


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
    one_by_one = "" if received.offer.together > 1 else "; the server runs one request at a time"
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
    return None if fits(schema, text) else f"does not fit the schema: {shown(text) or 'empty'}"


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
    streams = [Ask(key=f"stream {n + 1}", body=two_calls(stream=True)) for n in range(12 * offer.together // 8 or 1)]
    alone = Ask(key="stream alone", body=two_calls(stream=True), alone=True)
    return [Ask(key="whole", body=two_calls(stream=False), alone=True), alone, *streams]


def _calls_whole(received: Received) -> Judged:
    whole = received.answers["whole"]
    if wrong := _wrong_calls(whole, whole):
        return failed(f"not streamed: {wrong}", "whole")
    streams = [(ask, answer) for ask, answer in received.pairs() if ask.streams]
    if not whole.calls and not any(answer.calls for _, answer in streams):
        return unknown(f"the model called no tool: {shown(whole.content)}", "whole")
    bad = [(ask, wrong) for ask, answer in streams if (wrong := _wrong_calls(answer, whole))]
    if bad:
        ask, wrong = bad[0]
        return failed(f"{len(bad)} of {len(streams)} streams are wrong, the first ({where(ask)}): {wrong}", ask.key)
    if len(whole.calls) < 2:
        return unknown("the model called one tool instead of two", "whole")
    return passed(f"{len(streams)} streams with the same {len(whole.calls)} calls as without a stream")


def _wrong_calls(answer: ChatAnswer, whole: ChatAnswer) -> str | None:
    if [call.name for call in answer.calls] != [call.name for call in whole.calls]:
        names = [", ".join(call.name for call in side.calls) or "none" for side in (answer, whole)]
        return f"calls {names[0]}; without a stream {names[1]}"
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


_BAND: Final = 0.25
"""How far the acceptance length may fall below the stored one: it depends on what is asked."""
_NO_SUCH: Final = "gemmaspec-smoke-no-such-model"


def _picture() -> str:
    """Return a grey picture of 32 by 32 points as a data URL."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + b"\x80" * 96 for _ in range(32))
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _s13(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": _picture()}},
        {"type": "text", "text": "Which colour is this?"},
    ]
    return [
        Ask(key="picture", body=chat(content, tokens=16), alone=True),
        Ask(key="afterwards", body=chat("Say hello.", tokens=8), alone=True),
    ]


def _survives(received: Received) -> Judged:
    picture, afterwards = received.answers["picture"], received.answers["afterwards"]
    dead = (Fault.UNREACHABLE, Fault.BROKEN_OFF, Fault.FAILED)
    if picture.fault in dead or afterwards.fault in dead:
        then = "; the server no longer answers" if afterwards.fault in dead else ""
        return failed(f"a request with an image fails: {picture.fault or 'answered'}{then}", "picture")
    if picture.fault is Fault.REFUSED:
        return unknown(f"the server takes no image: {shown(picture.said)}", "picture")
    if afterwards.fault:
        return unknown(f"the request after it was not answered: {afterwards.fault}", "afterwards")
    return passed("a request with an image is answered, and so is the next one")


def _s14(offer: ServerOffer) -> Sequence[Ask]:
    """Return requests with parameters that vLLM refuses with a draft; it ignores min_p in a greedy request."""
    del offer
    return [
        Ask(key="min_p", body={**chat("Say hello.", tokens=8, min_p=0.05), "temperature": 0.7}, alone=True),
        Ask(key="logit_bias", body=chat("Say hello.", tokens=8, logit_bias={"5": 1.0}), alone=True),
    ]


def _taken(received: Received) -> Judged:
    refused = [ask.key for ask, answer in received.pairs() if answer.fault is Fault.REFUSED]
    if refused:
        refusal = shown(received.answers[refused[0]].said)
        return failed(f"clients that send {' or '.join(refused)} fail while speculation is on: {refusal}", refused[0])
    return passed("min_p and logit_bias are accepted")


def _s16(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    return [
        Ask(key="served", body=chat("Say hello.", tokens=8), alone=True),
        Ask(key="unknown name", body={**chat("Say hello.", tokens=8), "model": _NO_SUCH}, alone=True),
    ]


def _right_model(received: Received) -> Judged:
    served, other = received.answers["served"], received.answers["unknown name"]
    if served.fault is Fault.REFUSED:
        return failed(f"the served model's own name is refused: {shown(served.said)}", "served")
    if served.model != received.offer.model:
        return failed(f"{shown(served.model, 80) or 'no model'} answers for {received.offer.model}", "served")
    if not other.fault:
        return failed(f"a model that is not served is answered, by {shown(other.model, 80)}", "unknown name")
    versions = received.offer.versions
    if len(versions) > 1:
        return failed(f"the server answers as vLLM {versions[0]}, and its launcher patched {versions[1]}", "served")
    return passed(f"{served.model} answers{f', vLLM {versions[0]}' if versions else ''}; another name is refused")


def _s18(offer: ServerOffer) -> Sequence[Ask]:
    del offer
    texts = ("Name the planets of the solar system.", "Write a Python function that adds two numbers.")
    return [Ask(key=f"text {n}", body=chat(text, tokens=48), alone=True) for n, text in enumerate(texts, 1)]


def _drafts(received: Received) -> Judged:
    answers = [answer for _, answer in received.pairs()]
    if any(answer.drafts is None for answer in answers):
        return unknown("other requests ran, or the server's counters could not be read")
    drafts, accepted = sum(answer.drafts or 0 for answer in answers), sum(answer.accepted or 0 for answer in answers)
    if not drafts:
        return failed("nothing was drafted", "text 1")
    length = 1 + accepted / drafts
    stored = received.offer.stored_length
    if not accepted:
        return failed(f"no token of {drafts} drafts was accepted", "text 1")
    if stored is not None and length < (1 - _BAND) * stored:
        return failed(f"acceptance length {length:.2f}, and {stored:.2f} was measured or published", "text 1")
    return passed(f"acceptance length {length:.2f}{f', stored {stored:.2f}' if stored else ', nothing stored'}")


_WORK: Final[Mapping[str, Work]] = {
    **texture.WORK,
    "S5": (_s5, _all_fit),
    "S7": (_s7, _calls_whole),
    "S9": (_s9, _all_fit),
    "S10": (_s10, _ends),
    "S13": (_s13, _survives),
    "S14": (_s14, _taken),
    "S15": (_s15, _tools_taken),
    "S16": (_s16, _right_model),
    "S18": (_s18, _drafts),
}
TABLE: Final = Path(__file__).with_name("checks.yaml")


def _check(id_: str, row: Mapping[str, Any]) -> Check:
    asks, judge = _WORK[id_]
    return Check(
        id=id_,
        name=row["name"],
        asks=asks,
        judge=judge,
        fix=row["fix"],
        needs=frozenset(Need[name] for name in row.get("needs", ())),
        counts=row.get("counts", True),
        judges=frozenset(Fault[name] for name in row.get("judges", ())),
    )


CHECKS: Final = tuple(_check(id_, row) for id_, row in strict_yaml.table(TABLE).items())
_GAIN: Final = 0.6
"""How much each further request at once adds to the tokens per second, in units of one request's. Published figures:
3.2 times as many for 3 requests, 5.6 for 4, 6.2 for 8 (docs/reference/shipped-profiles.md)."""


def chosen(*, only: Sequence[str], skip: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks of these ids, or all but those. Raises UsageError for an id that does not exist."""
    known = {check.id for check in CHECKS}
    for name in (*only, *skip):
        if name not in known:
            raise UsageError(f"there is no check {name!r}", hint="gemmaspec smoke --list")
    return tuple(check for check in CHECKS if (not only or check.id in only) and check.id not in skip)


def budget_s(checks: Sequence[Check], offer: ServerOffer, *, tokens_per_second: float = 30.0) -> float:
    """Return the seconds that the checks' answers take at most, each as long as its max_tokens.

    `tokens_per_second` is the speed of one request alone. Reading the prompts, some 17,000 tokens in all, comes on top.
    """
    asks = [ask for check in checks if not skipped(check, offer) for ask in check.asks(offer)]
    alone = sum(ask.max_tokens for ask in asks if ask.alone)
    together = sum(ask.max_tokens for ask in asks if not ask.alone)
    gain = 1 + _GAIN * (offer.together - 1)
    return (alone + together / gain) / tokens_per_second
