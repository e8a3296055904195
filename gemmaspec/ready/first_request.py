"""Send a server a real request, and check the answer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.engine.http import NoAnswer, Reply, exchange
from gemmaspec.engine.server import Server
from gemmaspec.errors import GemmaspecError, StartFailed
from gemmaspec.launcher.probe import MAX_TOKENS, QUESTION, SETTLE_S, SETTLE_TRIES
from gemmaspec.ready.counters import SpecCounters, spec_counters
from gemmaspec.ready.logline import printable
from gemmaspec.ready.metrics import read_metrics
from gemmaspec.smoke.answer import FEW, Collector, Malformed, unlikely

HEALTH_TIMEOUT_S: Final = 2.0

_FINISHED: Final = ("stop", "length", "tool_calls")
"""Of FinishReason in v1/engine/__init__.py, every release, those that are not an abort or an error."""

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
    tokens_per_second: float
    """Completion tokens per second, including the time to read the prompt."""


def api_key_for(server: Server) -> str | None:
    """Return the API key for requests to this server: $VLLM_API_KEY if it needs one."""
    return os.environ.get("VLLM_API_KEY") or None if server.needs_api_key else None


def healthy(server: Server) -> bool:
    """Return whether /health answers 200. It only triggers the probe; it does not mean ready."""
    try:
        return exchange(server.base_url, "/health", timeout_s=HEALTH_TIMEOUT_S).status == 200
    except GemmaspecError:
        return False


def read_counters(server: Server, *, timeout_s: float, api_key: str | None = None) -> SpecCounters:
    """Return what the server has drafted since its start. Raises StartFailed or TimedOut if it does not report it."""
    return spec_counters(read_metrics(server, timeout_s=timeout_s, api_key=api_key))


def ask(
    server: Server,
    messages: Sequence[Mapping[str, Any]],
    *,
    max_tokens: int = MAX_TOKENS,
    timeout_s: float = 120.0,
    api_key: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Answer:
    """Request one greedy chat completion and measure it. `extra` is added to the request's body.

    `api_key` defaults to the key of the environment, if the server needs one.
    Raises NoAnswer if the connection breaks or the server fails, StartFailed for any other answer that is not a
    chat completion, TimedOut after `timeout_s`.
    """
    key = api_key or api_key_for(server)
    before = _counters(server, timeout_s=timeout_s, api_key=key)
    body = {
        "model": server.model,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": max_tokens,
        **(extra or {}),
    }
    began = time.monotonic()
    reply = exchange(server.base_url, "/v1/chat/completions", body=body, timeout_s=timeout_s, api_key=key)
    seconds = time.monotonic() - began
    completion = _completion(reply)
    added = _settled(server, before, timeout_s=timeout_s, api_key=key)
    return _answer(completion, seconds, added)


def probe(server: Server, *, timeout_s: float, api_key: str | None = None, any_text: bool = False) -> Answer:
    """Send real requests, which prove that a server is ready: a greedy one, and while it drafts a sampled one.

    `any_text` accepts an unreadable answer, for a server with dummy weights that is only timed.
    Raises what `ask` raises, and StartFailed if the answer is empty, contains markers that should have been removed,
    or was not drafted although the server has a model or head that drafts for every text, and if the sampled one has
    tokens that the target would hardly choose.
    """
    answer = ask(server, [{"role": "user", "content": QUESTION}], timeout_s=timeout_s, api_key=api_key)
    must_draft = server.speculates and not server.looks_up
    if complaint := judge(answer, speculates=must_draft, any_text=any_text):
        raise StartFailed(complaint)
    if server.speculates and not any_text:
        _check_sampled(server, timeout_s=timeout_s, api_key=api_key or api_key_for(server))
    return answer


def _check_sampled(server: Server, *, timeout_s: float, api_key: str | None) -> None:
    """Raise StartFailed if a sampled answer is not drawn from the target's distribution; NoAnswer if it is fatal.

    A server that refuses log-probabilities, with `--max-logprobs 0`, is only checked to survive.
    """
    message = {"role": "user", "content": QUESTION}
    body = {"model": server.model, "messages": [message], "temperature": 1, "max_tokens": MAX_TOKENS, "logprobs": True}
    reply = exchange(server.base_url, "/v1/chat/completions", body=body, timeout_s=timeout_s, api_key=api_key)
    if reply.status == 400:
        return
    _completion(reply)
    collected = Collector()
    try:
        collected.whole(reply.body)
    except Malformed as error:
        raise StartFailed(f"the sampled answer cannot be read: {error}") from None
    tokens = collected.answer().tokens
    if len(found := unlikely(tokens)) > FEW:
        told = f"{len(found)} of {len(tokens)} have a probability under 0.001, the first {printable(found[0])[:40]!r}"
        raise StartFailed(
            f"with temperature 1 the server says tokens that the target would not choose: {told}",
            hint=f"gemmaspec up {server.name} --no-spec    # on a CPU: patches.required: [cpu-expand-sampling]",
        )


def judge(answer: Answer, *, speculates: bool, any_text: bool = False) -> str | None:
    """Return what is wrong with a first answer, if anything. `any_text` checks everything but the text."""
    if answer.finish_reason not in _FINISHED:
        return f"the first answer ended with {answer.finish_reason!r}, not with one of {', '.join(_FINISHED)}"
    if not any_text and (complaint := _unreadable(answer)):
        return complaint
    if speculates and not answer.draft_tokens:
        tokens = answer.completion_tokens
        return f"the server answers but does not draft: {tokens} tokens, but no draft in /metrics"
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


def _counters(server: Server, *, timeout_s: float, api_key: str | None) -> SpecCounters:
    if not server.speculates:
        return SpecCounters()
    return read_counters(server, timeout_s=timeout_s, api_key=api_key)


def _settled(server: Server, before: SpecCounters, *, timeout_s: float, api_key: str | None) -> SpecCounters:
    """Return the increase of the counters by one request, once they have stopped growing."""
    last = SpecCounters()
    for _ in range(SETTLE_TRIES if server.speculates else 0):
        added = _counters(server, timeout_s=timeout_s, api_key=api_key).since(before)
        if added.draft_tokens and added == last:
            return added
        last = added
        time.sleep(SETTLE_S)
    return last


def _completion(reply: Reply) -> dict[str, Any]:
    if reply.status == 401:
        raise StartFailed(
            "the server rejects the API key", hint="export VLLM_API_KEY=…    # the key that the server was started with"
        )
    if reply.status >= 500:
        raise NoAnswer(f"the request failed inside the server (HTTP {reply.status}){_said(reply)}")
    if reply.status != 200:
        raise StartFailed(f"the server rejects the request (HTTP {reply.status}){_said(reply)}")
    found = reply.json()
    if not isinstance(found, dict):
        raise StartFailed("the server's answer is not a chat completion")
    return found


def _said(reply: Reply) -> str:
    """Return the message of an error reply: `{"error": {"message": …}}` or its older form without `error`."""
    with contextlib.suppress(StartFailed):
        found = _mapping(reply.json())
        said = _text(_mapping(found.get("error")).get("message")) or _text(found.get("message"))
        return f": {printable(said)[:300]}" if said else ""
    return ""


def _answer(completion: dict[str, Any], seconds: float, added: SpecCounters) -> Answer:
    choice, usage = _first(completion.get("choices")), _mapping(completion.get("usage"))
    message = _mapping(choice.get("message"))
    tokens = _count(usage.get("completion_tokens"))
    return Answer(
        text=_text(message.get("content")),
        # vLLM has called it both: entrypoints/openai/chat_completion/protocol.py
        reasoning=_text(message.get("reasoning")) or _text(message.get("reasoning_content")),
        finish_reason=_text(choice.get("finish_reason"))[:40],
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=tokens,
        seconds=seconds,
        drafts=added.drafts,
        draft_tokens=added.draft_tokens,
        accepted_tokens=added.accepted_tokens,
        acceptance_length=added.acceptance_length,
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
    )


def _first(choices: object) -> dict[str, Any]:
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    raise StartFailed("the server's answer has no choices")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
