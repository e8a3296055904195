"""The requests of checks: alone or several at once, each with its time, and all with theirs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.measure.counters import read_counters, settled
from gemmaspec.measure.load import together
from gemmaspec.measure.smoke.check import Ask
from gemmaspec.measure.smoke.row import body_text
from gemmaspec.run.engine.answer import ChatAnswer, Fault
from gemmaspec.run.engine.http import ChatClient
from gemmaspec.run.engine.server import Server

_COUNTERS_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ChatAsking:
    """How a server is asked."""

    server: Server
    api_key: str | None
    together: int
    """Requests in flight at most."""
    request_s: float
    """Seconds that one request may take, from its first byte to its last."""
    run_s: float
    """Seconds that all of them may take."""
    counted: bool = False
    """Whether drafts and cached tokens of each request that is sent alone are counted."""


def ask_all(asking: ChatAsking, asks: Sequence[Ask], *, on_answer: Callable[[Ask], None]) -> list[ChatAnswer]:
    """Send all requests, those that are to be alone one after another, then the rest together.

    Returns an answer for each, in their order; a fault is part of the answer. Raises UsageError when the server
    refuses the API key.
    """
    chat, until = ChatClient(asking.server.base_url, asking.api_key), time.monotonic() + asking.run_s
    telling = threading.Lock()

    def put(ask: Ask) -> ChatAnswer:
        left = min(asking.request_s, until - time.monotonic())
        if left <= 0:
            answer = ChatAnswer(fault=Fault.NOT_ASKED)
        else:
            answer = _answer(chat, asking, ask, left)
        with telling:
            on_answer(ask)
        return answer

    order = sorted(range(len(asks)), key=lambda place: not asks[place].alone)
    alone = [partial(put, asks[place]) for place in order if asks[place].alone]
    rest = [partial(put, asks[place]) for place in order[len(alone) :]]
    answers = together(alone, at_once=1, abort=chat.abort) + together(rest, at_once=asking.together, abort=chat.abort)
    answer_of = dict(zip(order, answers, strict=True))
    return [answer_of[place] for place in range(len(asks))]


def _answer(chat: ChatClient, asking: ChatAsking, ask: Ask, left: float) -> ChatAnswer:
    """Ask, and add what the server drafted for this one request; nothing is added where other requests ran."""
    server, key = asking.server, asking.api_key
    before = None
    with contextlib.suppress(GemmaspecError):
        if ask.alone and asking.counted:
            before = read_counters(server, timeout_s=_COUNTERS_S, api_key=key)
        else:
            before = None
    answer = chat.answer(body_text(ask.body, model=server.model).encode(), timeout_s=left, streams=ask.streams)
    if answer.status == 401:
        raise UsageError("the server refuses the API key", hint="export VLLM_API_KEY with the key of the server")
    if before is None or answer.fault or not answer.completion_tokens:
        return answer
    with contextlib.suppress(GemmaspecError):
        tokens = answer.completion_tokens
        added = settled(server, before, tokens=tokens, timeout_s=_COUNTERS_S, api_key=key)
        if added.generated == tokens:
            return dataclasses.replace(answer, drafts=added.drafts, accepted=added.accepted, cached=added.cached)
    return answer
