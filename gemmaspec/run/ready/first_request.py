"""Send a server a real request, and check the answer.

A running server's /metrics, read in this one place: for the first request, `status`, `top`, `watch` and `bench`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, StartFailed, TimedOut
from gemmaspec.core.launcher.probe import (
    MAX_TOKENS,
    QUESTION,
    SETTLE_S,
    SETTLE_TRIES,
)
from gemmaspec.core.live.sample import Counters, Sample, read_sample
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.run.engine.answer import FEW, MAX_BYTES, ChatAnswer, Fault, unlikely
from gemmaspec.run.engine.http import CHAT, ChatClient, NoAnswer, exchange
from gemmaspec.run.engine.server import Server
from gemmaspec.run.ready.logline import printable

LOOK_S: Final = 2.0
"""Seconds that a command waits which reads again soon."""


class UnreadableMetrics(StartFailed):
    """The server answers /metrics with something else than vLLM's counters."""


def read_metrics(server: Server, *, timeout_s: float, api_key: str | None) -> Sample:
    """Return the counters of now. Raises UnreadableMetrics, and what `exchange` raises."""
    reply = exchange(server.base_url, "/metrics", timeout_s=timeout_s, api_key=api_key)
    if reply.status != 200:
        raise UnreadableMetrics(f"/metrics answers HTTP {reply.status}")
    try:
        return read_sample(reply.body.decode("utf-8", "replace"), at=time.monotonic(), model=server.model)
    except (ValueError, OverflowError, IndexError, KeyError):
        raise UnreadableMetrics("the counters of /metrics cannot be read") from None


HEALTH_TIMEOUT_S: Final = 2.0

_FINISHED: Final = ("stop", "length", "tool_calls")
"""Of FinishReason in v1/engine/__init__.py, every release, those that are not an abort or an error."""
_ENDS: Final = f"not one of {', '.join(_FINISHED)}"

_LEAKS: Final = {
    "<|channel>": "the reasoning parser (chat.reasoning_parser) or the chat template (chat.template)",
    "<channel|>": "the reasoning parser (chat.reasoning_parser) or the chat template (chat.template)",
    "<|turn>": "the chat template (chat.template)",
    "<turn|>": "the chat template (chat.template)",
}
"""Gemma 4's markers, and what should have removed each from the text."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One chat completion and its measurements."""

    text: str
    reasoning: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Wall-clock time from the request to the last byte."""
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_length: float | None
    """1 + accepted / drafts over this request; None without drafts."""
    counted: int | None = None
    """Tokens that the engine counted since the request; None if nobody looked."""
    tokens_per_second: float
    """Completion tokens per second, including the time to read the prompt."""


def api_key_for(server: Server) -> str | None:
    """Return the API key for requests to this server: $VLLM_API_KEY if it needs one.

    Raise EnvironmentMissing where another user can write the record that says to whom it is sent.
    """
    if server.needs_api_key:
        ensure_own()
        return os.environ.get("VLLM_API_KEY") or None
    return None


def healthy(server: Server) -> bool:
    """Return whether /health answers 200. It only triggers the probe; it does not mean ready."""
    try:
        return exchange(server.base_url, "/health", timeout_s=HEALTH_TIMEOUT_S).status == 200
    except GemmaspecError:
        return False


def probe(
    server: Server,
    *,
    timeout_s: float,
    api_key: str | None = None,
    any_text: bool = False,
    settle_s: float = SETTLE_S,
) -> Answer:
    """Send real requests, which prove that a server is ready: a greedy one, and while it drafts a sampled one.

    All of it, its counters included, may take `timeout_s`. `api_key` defaults to the key of the environment, if the
    server needs one. `any_text` accepts an unreadable answer, for a server with dummy weights that is only timed.
    `settle_s`: seconds between two looks at its counters.
    Raises NoAnswer if the connection breaks or the server fails, TimedOut, and StartFailed if the answer is not a chat
    completion, is empty, contains markers that should have been removed, or was not drafted although the server has a
    model or head that drafts for every text, and if the sampled one has tokens that the target would hardly choose.
    """
    asking = _Asking(server, api_key or api_key_for(server), time.monotonic() + timeout_s, timeout_s, settle_s)
    answer = asking.measured()
    must_draft = server.speculates and not server.looks_up
    if complaint := judge(answer, speculates=must_draft, any_text=any_text):
        raise StartFailed(complaint)
    if server.speculates and not any_text:
        _check_sampled(server, asking)
    return answer


def _check_sampled(server: Server, asking: _Asking) -> None:
    """Raise StartFailed if a sampled answer is not drawn from the target's distribution; NoAnswer if it is fatal.

    A server that refuses log-probabilities, with `--max-logprobs 0`, is only checked to survive.
    """
    reply = asking.sent({"temperature": 1, "logprobs": True})
    if reply.status == 400:
        return
    answer = asking.whole(reply)
    if answer.finish not in _FINISHED:
        raise StartFailed(f"with temperature 1 an answer ended with {answer.finish!r}: {_ENDS}")
    tokens = answer.tokens
    if len(odd := unlikely(tokens)) > FEW:
        told = f"{len(odd)} of {len(tokens)} have a probability under 0.001, the first {printable(odd[0])[:40]!r}"
        raise StartFailed(
            f"with temperature 1 the server says tokens that the target would not choose: {told}",
            hint=f"gemmaspec up {server.name} --no-spec    # on a CPU: patches.required: [cpu-expand-sampling]",
        )


def judge(answer: Answer, *, speculates: bool, any_text: bool = False) -> str | None:
    """Return what is wrong with a first answer, if anything. `any_text` checks everything but the text."""
    if answer.finish_reason not in _FINISHED:
        return f"the first answer ended with {answer.finish_reason!r}: {_ENDS}"
    if not any_text and (complaint := _unreadable(answer)):
        return complaint
    if not 0 < answer.completion_tokens <= MAX_TOKENS:
        return (
            f"the first answer has {answer.completion_tokens} tokens by its own count, of 1 to {MAX_TOKENS} asked for"
        )
    if speculates and not answer.draft_tokens:
        tokens = answer.completion_tokens
        return f"the server answers but does not draft: {tokens} tokens, but no draft in /metrics"
    return _miscounted(answer)


def _miscounted(answer: Answer) -> str | None:
    """Return how the counters of /metrics contradict the answer: then they prove no draft of it.

    A step of the target makes at least one token. Other requests only add to both; one that is aborted may take its
    own few tokens away (v1/engine/output_processor.py), hence the factor of two.
    """
    if answer.counted is None:
        return None
    if answer.counted < answer.completion_tokens:
        return (
            f"the first answer has {answer.completion_tokens} tokens, but /metrics counts {answer.counted}: "
            "the text is not from this engine, or the counters are not"
        )
    if answer.drafts > 2 * answer.counted or answer.accepted_tokens > answer.draft_tokens:
        return (
            f"/metrics contradicts itself: {answer.counted} tokens, but {answer.drafts} drafts of "
            f"{answer.draft_tokens} tokens with {answer.accepted_tokens} accepted"
        )
    return None


def _unreadable(answer: Answer) -> str | None:
    if not answer.text and not answer.reasoning:
        return "the first answer is empty"
    for marker, culprit in _LEAKS.items():
        if marker in answer.text:
            return f"the first answer contains the marker {marker}: {culprit} did not remove it"
    if answer.text.startswith("thought\n") and not answer.reasoning:
        return "the first answer contains the model's reasoning: the reasoning parser missed its markers"
    return None


@dataclass(frozen=True)
class _Asking:
    """A server that is asked until a deadline."""

    server: Server
    key: str | None
    ends: float
    timeout_s: float
    settle_s: float

    def measured(self) -> Answer:
        """Ask one question greedily, and measure the answer."""
        before = self._counters()
        began = time.monotonic()
        reply = self.whole(self.sent({"temperature": 0}))
        seconds = time.monotonic() - began
        added = self._settled(before, reply.completion_tokens)
        return Answer(
            text=reply.content,
            reasoning=reply.reasoning,
            finish_reason=reply.finish,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            seconds=seconds,
            drafts=added.drafts,
            draft_tokens=added.drafted,
            accepted_tokens=added.accepted,
            acceptance_length=added.acceptance_length,
            counted=added.generated if self.server.speculates else None,
            tokens_per_second=reply.completion_tokens / seconds if seconds > 0 else 0.0,
        )

    def sent(self, more: Mapping[str, Any]) -> ChatAnswer:
        """Return the answer to the question, or the fault that it ended in; `more` is added to the request."""
        messages = [{"role": "user", "content": QUESTION}]
        body = {"model": self.server.model, "messages": messages, "max_tokens": MAX_TOKENS, **more}
        chat = ChatClient(self.server.base_url, self.key)
        return chat.answer(json.dumps(body).encode(), timeout_s=self.ends - time.monotonic())

    def whole(self, reply: ChatAnswer) -> ChatAnswer:
        """Return an answer that is one. Raises TimedOut, NoAnswer and StartFailed for any other."""
        if reply.said:
            why = f": {printable(reply.said)[:300]}"
        else:
            why = ""
        match reply.fault:
            case None:
                return reply
            case Fault.ENDLESS:
                raise TimedOut(f"{CHAT} did not answer within {self.timeout_s:.0f} s")
            case Fault.UNREACHABLE:
                raise NoAnswer(f"cannot connect to {self.server.base_url}")
            case Fault.BROKEN_OFF:
                raise NoAnswer(f"the server closed the connection during {CHAT}")
            case Fault.HUGE:
                raise StartFailed(f"{CHAT} answers with more than {MAX_BYTES} bytes")
        if reply.status == 401:
            key = "export VLLM_API_KEY=…    # the key that the server was started with"
            raise StartFailed("the server rejects the API key", hint=key)
        if reply.status >= 500:
            raise NoAnswer(f"the request failed inside the server (HTTP {reply.status}){why}")
        if reply.fault in (Fault.REFUSED, Fault.FAILED):
            raise StartFailed(f"the server rejects the request (HTTP {reply.status}){why}")
        raise StartFailed(f"the server's answer is not a chat completion{why}")

    def _counters(self) -> Counters:
        if not self.server.speculates:
            return Counters()
        return Counters.of(read_metrics(self.server, timeout_s=self.ends - time.monotonic(), api_key=self.key))

    def _settled(self, before: Counters, tokens: int) -> Counters:
        """Return the increase of the counters by one request of so many tokens, once they have stopped growing.

        Raise StartFailed if they are lower than before it.
        """
        last: Counters | None = Counters()
        for _ in range(SETTLE_TRIES if self.server.speculates else 0):
            added = self._counters().since(before)
            if added and added.drafted and added.generated >= tokens and added == last:
                return added
            last = added
            time.sleep(self.settle_s)
        if last is None:
            raise StartFailed("the counters of /metrics fell during the first request, as those of another server do")
        return last
