"""What a server answered to one chat completion, whole or streamed. Every byte of it is hostile input."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one answer; the longest that a check asks for has some 200 kB, streamed."""
MAX_CALLS: Final = 32
MAX_TOKENS: Final = 4096


class Fault(StrEnum):
    """Why there is no answer to judge."""

    REFUSED = "refused"
    """HTTP 4xx."""
    FAILED = "failed"
    """HTTP 5xx, or an error in the middle of a stream."""
    UNREACHABLE = "unreachable"
    BROKEN_OFF = "broken off"
    ENDLESS = "endless"
    """It had not ended when its time was up."""
    MALFORMED = "malformed"
    HUGE = "huge"
    NOT_ASKED = "not asked"
    """The time of the whole run was up before."""


class Malformed(Exception):
    """The answer is not a chat completion; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call."""

    name: str
    arguments: str
    """JSON, as the server wrote it."""
    named_first: bool = True
    """Whether its first chunk had an id and a name; always, where it was not streamed."""

    def parsed(self) -> dict[str, Any] | None:
        """Return the arguments; None if they are no JSON object."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, dict):
            return value
        return None


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of an answer with its log-probabilities."""

    text: str
    gap: float | None
    """Nats between the likeliest token and the next; None if the server does not say."""
    logprob: float | None = None
    """The token's own log-probability; None if the server does not say."""


UNLIKELY: Final = math.log(1e-3)
FEW: Final = 3
"""So many unlikely tokens of 36 are chance where one answer is as good as certain, as in counting; more are not."""


def unlikely(tokens: Sequence[Token]) -> list[str]:
    """Return the sampled tokens to which the target itself gives a probability under 0.001."""
    return [token.text for token in tokens if token.logprob is not None and not token.logprob >= UNLIKELY]


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """One answer. Where `fault` is set, the rest is what had come until then."""

    fault: Fault | None = None
    said: str = ""
    """The server's own words of an error."""
    status: int = 0
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    model: str = ""
    tokens: tuple[Token, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    drafts: int | None = None
    """Drafts that the server counted for this request; None if nobody looked, or other requests ran."""
    accepted: int | None = None
    cached: int | None = None
    """Tokens of the prompt that were read from the prefix cache; None as for drafts."""

    @property
    def length(self) -> float | None:
        """The acceptance length: 1 + accepted / drafts."""
        if self.drafts:
            return 1 + (self.accepted or 0) / self.drafts
        return None


@dataclass(kw_only=True)
class _StreamedCall:
    """A streamed tool call as far as it has come."""

    named: bool
    name: str = ""
    arguments: str = ""


@dataclass(kw_only=True)
class Collector:
    """Puts an answer together from a whole document or from the bytes of a stream."""

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ended: bool = False
    """Whether the stream said that it is complete."""
    _waiting: bytes = b""
    _calls: dict[int, _StreamedCall] = field(default_factory=dict)
    _tokens: list[Token] = field(default_factory=list)

    def whole(self, body: bytes) -> None:
        """Take a document that was not streamed. Raises Malformed."""
        document = _json(body)
        choice = _choice(document)
        if choice is None:
            raise Malformed("the answer has no choice in it")
        self._take(document, choice, choice.get("message"))
        self.ended = True

    def feed(self, part: bytes) -> None:
        """Take some bytes of a stream. Raises Malformed, and StreamError for an error that the server reports."""
        *lines, self._waiting = (self._waiting + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                self.ended = True
                continue
            event = _json(text)
            if error := event.get("error"):
                raise StreamError(said(error))
            choice = _choice(event)
            self._take(event, choice or {}, choice.get("delta") if choice else {})

    def answer(self, **more: Any) -> ChatAnswer:
        """Return what was collected; `more` are further fields of the answer."""
        calls = (
            Call(name=call.name, arguments=call.arguments, named_first=call.named)
            for _, call in sorted(self._calls.items())
        )
        same = ("content", "reasoning", "finish", "model", "prompt_tokens", "completion_tokens")
        copied = {name: getattr(self, name) for name in same}
        return ChatAnswer(**{**copied, "calls": tuple(calls), "tokens": tuple(self._tokens), **more})

    def _take(self, event: Mapping[str, Any], choice: Mapping[str, Any], message: object) -> None:
        message = message if isinstance(message, dict) else {}
        self.content += _text(message.get("content"))
        # vLLM has called it both: entrypoints/openai/chat_completion/protocol.py
        self.reasoning += _text(message.get("reasoning")) or _text(message.get("reasoning_content"))
        self.finish = _text(choice.get("finish_reason"))[:40] or self.finish
        self.model = _text(event.get("model"))[:200] or self.model
        usage = event.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        self.prompt_tokens = count(usage.get("prompt_tokens")) or self.prompt_tokens
        self.completion_tokens = count(usage.get("completion_tokens")) or self.completion_tokens
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            self._take_call(place, call)
        self._take_tokens(choice.get("logprobs"))

    def _take_call(self, place: int, call: object) -> None:
        if not isinstance(call, dict):
            raise Malformed("a tool call is not an object")
        index = call.get("index", place)
        if not isinstance(index, int) or not 0 <= index < MAX_CALLS:
            raise Malformed("the index of a tool call is out of range")
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name = _text(function.get("name"))
        part = self._calls.setdefault(index, _StreamedCall(named=bool(name and _text(call.get("id")))))
        part.name = part.name or name
        part.arguments += _text(function.get("arguments"))

    def _take_tokens(self, logprobs: object) -> None:
        if isinstance(logprobs, dict):
            content = logprobs.get("content")
        else:
            content = None
        for entry in content if isinstance(content, list) else ():
            if isinstance(entry, dict) and len(self._tokens) < MAX_TOKENS:
                text, gap = _text(entry.get("token")), _gap(entry.get("top_logprobs"))
                self._tokens.append(Token(text=text, gap=gap, logprob=_number(entry.get("logprob"))))


class StreamError(Exception):
    """The server reported an error in the middle of a stream, in these words."""


def error_text(body: bytes) -> str:
    """Return what the body of an error reply says; "" where that cannot be read."""
    try:
        return said(json.loads(body))
    except (ValueError, RecursionError):
        return ""


def said(error: object) -> str:
    """Return the message of an error document, as `{"error": {"message": …}}` or one of its older forms."""
    for key in ("error", "message", "detail"):
        if isinstance(error, dict) and key in error:
            error = error[key]
    if isinstance(error, str):
        return error
    return ""


def _json(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("the answer holds what is not JSON") from None
    if not isinstance(document, dict):
        raise Malformed("the answer contains something that is not a JSON object")
    return document


def _choice(event: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = event.get("choices")
    if isinstance(choices, list) and choices:
        first = choices[0]
    else:
        first = None
    if isinstance(first, dict):
        return first
    return None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return ""


def count(value: object) -> int:
    """Return a count that a server reports; 0 for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9:
        return value
    return 0


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def _gap(top: object) -> float | None:
    if isinstance(top, list):
        values = [token.get("logprob") for token in top if isinstance(token, dict)]
    else:
        values = []
    numbers = sorted((number for number in values if isinstance(number, int | float)), reverse=True)
    if len(numbers) > 1:
        return numbers[0] - numbers[1]
    return None
