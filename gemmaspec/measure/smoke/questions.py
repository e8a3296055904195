"""The requests that checks send: their texts, tools and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
    if stream:
        usage = {"stream_options": {"include_usage": True}}
    else:
        usage = {}
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
    pages = []
    for number in range(1, max(1, entries) + 1):
        pages.append(_BOOK.format(n=number, a=number * 7 % 23, b=number * 5 % 17, c=number * 13 % 91))
    pages.insert(len(pages) // 2, f"{needle} " if needle else "")
    return "".join(pages)
