"""What a server answered to one chat completion, whole or streamed. Every byte of it is hostile input.

Requests: their texts, tools and schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
        return value if isinstance(value, dict) else None


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
        return 1 + (self.accepted or 0) / self.drafts if self.drafts else None


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
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
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
    return error if isinstance(error, str) else ""


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
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def count(value: object) -> int:
    """Return a count that a server reports; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _gap(top: object) -> float | None:
    values = [token.get("logprob") for token in top if isinstance(token, dict)] if isinstance(top, list) else []
    numbers = sorted((number for number in values if isinstance(number, int | float)), reverse=True)
    return numbers[0] - numbers[1] if len(numbers) > 1 else None


_TRAINS: Final = (
    "Look up the trains from Milano to Piacenza today. First call get_station once for each of the two cities."
)
_BOOK: Final = "Entry {n}: crew {a} read the gauge of basin {b} and wrote down {c} litres; the next shift was told. "


class City(BaseModel):
    """What the answers under a schema are to hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    city: str = Field(max_length=60)
    country: str = Field(max_length=60)
    inhabitants: int = Field(ge=0)
    on_a_river: bool


class Cities(BaseModel):
    """A longer answer under a schema, with room to get lost in."""

    model_config = ConfigDict(extra="forbid", strict=True)

    cities: list[City] = Field(min_length=1, max_length=5)


CITIES: Final = (
    "Lisbon", "Oslo", "Nairobi", "Lima", "Hanoi", "Vienna", "Cairo", "Quito", "Dublin", "Seoul", "Riga", "Accra",
    "Prague", "Perth", "Porto", "Osaka", "Tunis", "Tampere", "Bergen", "Bologna", "Leeds", "Lyon", "Graz", "Ghent",
)  # fmt: skip
QUESTIONS: Final = (
    "Name three primary colours.", "Why is the sky blue, in one sentence?", "Count from one to ten, in words.",
    "What is the capital of Norway?", "Translate 'good morning' into French.", "Write Python that adds a and b.",
    "Which planet is the largest?", "Give a synonym of quick.", "What does a carpenter make?", "Spell harbour.",
    "How many legs has a spider?", "Name two rivers of Europe.", "What is seven times eight?", "Say what ice is.",
    "Which month follows May?", "Name an animal that flies.",
)  # fmt: skip


def chat(
    content: str | Sequence[Mapping[str, Any]],
    *,
    tokens: int,
    thinking: bool = False,
    stream: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Return a greedy request with one message of a user."""
    return talk([{"role": "user", "content": content}], tokens=tokens, thinking=thinking, stream=stream, **more)


def talk(
    messages: Sequence[Mapping[str, Any]], *, tokens: int, thinking: bool = False, stream: bool = False, **more: Any
) -> dict[str, Any]:
    """Return a greedy request with a conversation."""
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    return {
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "stream": stream,
        **usage,
        "chat_template_kwargs": {"enable_thinking": thinking},
        **more,
    }


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """Return a tool whose parameters are all required strings."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER: Final = tool("get_weather", "Weather of a city, now.", city="The city.")
STATION: Final = tool("get_station", "Code of a city's main station.", city="The city.")
TRAINS: Final = tool(
    "get_trains",
    "Trains of a day between two stations.",
    origin="Station code.",
    destination="Station code.",
    date="Day.",
)


def two_calls(*, stream: bool) -> dict[str, Any]:
    """Return a request that is best answered with two tool calls."""
    return chat(_TRAINS, tokens=64, stream=stream, tools=[STATION, TRAINS], tool_choice="auto")


def after_tool(*, stream: bool) -> dict[str, Any]:
    """Return a conversation that ends in a tool's result."""
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    messages: list[Mapping[str, Any]] = [
        {"role": "user", "content": "What is the weather in Oslo? Answer in one short sentence."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "rain", "degrees": 7}'},
    ]
    return talk(messages, tokens=80, thinking=True, stream=stream, tools=[WEATHER])


def under_schema(
    question: str, schema: type[BaseModel], *, tokens: int, thinking: bool, stream: bool = False
) -> dict[str, Any]:
    """Return a request whose answer a JSON schema binds."""
    named = {"name": schema.__name__.lower(), "schema": schema.model_json_schema(), "strict": True}
    form = {"type": "json_schema", "json_schema": named}
    return chat(question, tokens=tokens, thinking=thinking, stream=stream, response_format=form)


def fits(schema: type[BaseModel], text: str) -> bool:
    """Return whether a text is JSON as the schema wants it."""
    try:
        schema.model_validate_json(text)
    except (ValidationError, RecursionError):
        return False
    return True


def book(entries: int, *, needle: str = "") -> str:
    """Return a logbook of so many entries, no two alike, with the needle in its middle."""
    pages = [_BOOK.format(n=n, a=n * 7 % 23, b=n * 5 % 17, c=n * 13 % 91) for n in range(1, max(1, entries) + 1)]
    pages.insert(len(pages) // 2, f"{needle} " if needle else "")
    return "".join(pages)
