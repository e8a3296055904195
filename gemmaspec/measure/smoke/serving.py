"""Checks of the server: images with a draft, refused parameters, the model that answers, drafting."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from gemmaspec.measure.smoke.check import (
    Ask,
    Judged,
    Received,
    ServerOffer,
    failed,
    passed,
    shown,
    unknown,
)
from gemmaspec.measure.smoke.questions import (
    chat,
)
from gemmaspec.run.engine.answer import Fault

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
        if afterwards.fault in dead:
            then = "; the server no longer answers"
        else:
            then = ""
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
    drafts = sum(answer.drafts or 0 for answer in answers)
    accepted = sum(answer.accepted or 0 for answer in answers)
    if not drafts:
        return failed("nothing was drafted", "text 1")
    length = 1 + accepted / drafts
    stored = received.offer.stored_length
    if not accepted:
        return failed(f"no token of {drafts} drafts was accepted", "text 1")
    if stored is not None and length < (1 - _BAND) * stored:
        return failed(f"acceptance length {length:.2f}, and {stored:.2f} was measured or published", "text 1")
    return passed(f"acceptance length {length:.2f}{f', stored {stored:.2f}' if stored else ', nothing stored'}")
