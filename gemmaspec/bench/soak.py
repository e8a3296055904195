"""Long conversations, and what decays over them: acceptance, speed, memory. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.bench.filler import filler

_QUESTIONS: Final = (
    "Summarize the last entries in two sentences.",
    "Write a Python function that parses one entry of the logbook.",
    "Which entry was the most unusual, and why?",
    "Return the last three entries as JSON with the keys number, hour and text.",
    "What should be repaired first?",
)
_EACH: Final = 600
"""Characters of text that every turn adds to the conversation."""
_CHARACTERS: Final = 3
"""Characters in a token, at least: a bound for the context that a conversation may fill."""
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "find_entry",
        "description": "Find an entry of the logbook by its number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
_LOSES: Final = 0.10
"""Share by which acceptance or speed must fall to count as decay."""
_GROWS: Final = 0.05
"""Share of the machine's memory by which its use must grow."""
_LEAST: Final = 3
"""Turns of a kind at start and end, below which nothing is judged."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answered turn."""

    place: int
    """Its number in its conversation: turns of one place have contexts of about one length."""
    kind: str
    """`greedy`, `sampled` or `tools`."""
    seconds: float
    tokens: int
    drafts: int | None = None
    accepted: int | None = None
    memory: float | None = None
    """Share of the memory in use after it: the GPU's, or the machine's where the GPU reports none."""
    fault: str = ""
    """Why it has no answer."""


def turns_of(number: int, *, context: int, tokens: int, tools: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kind and the request of each turn of a conversation, until its context is full.

    The answers are not known beforehand: the caller adds each to `messages`, which the next request contains.
    """
    messages: list[dict[str, Any]] = []
    place, room = 0, context - tokens
    while (sum(len(str(one["content"])) for one in messages) + _EACH + 200) / _CHARACTERS < room:
        text = filler(_EACH, seed=f"{number}/{place}")
        messages.append({"role": "user", "content": f"{text}\n\n{_QUESTIONS[place % len(_QUESTIONS)]}"})
        kind = "tools" if tools and place % 5 == 4 else "sampled" if place % 2 else "greedy"
        extra: Mapping[str, Any] = {"tools": [_TOOL], "tool_choice": "auto"} if kind == "tools" else {}
        yield (
            kind,
            {
                "messages": messages,
                "stream": False,
                "max_tokens": tokens,
                "temperature": 0.8 if kind == "sampled" else 0,
                "chat_template_kwargs": {"enable_thinking": False},
                **extra,
            },
        )
        place += 1


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure at the start and at the end of a soak."""

    name: str
    start: float
    end: float
    decays: bool

    @property
    def change(self) -> float:
        """The relative change."""
        return self.end / self.start - 1 if self.start else 0.0


def figures(turns: Sequence[Turn]) -> list[Figure]:
    """Return acceptance length, speed and memory of the first and the last third, at contexts of the same length.

    Nothing is returned for a figure that was not measured often enough.
    """
    good = [one for one in turns if not one.fault and one.tokens and one.seconds > 0]
    third = max(1, len(good) // 3)
    first, last = good[:third], good[-third:]
    places = {(one.place, one.kind) for one in first} & {(one.place, one.kind) for one in last}
    start = [one for one in first if (one.place, one.kind) in places]
    end = [one for one in last if (one.place, one.kind) in places]
    found = []
    for name, kind in (("acceptance length", _length), ("tokens per second", _speed), ("memory in use", _memory)):
        before, after = ([value for one in part if (value := kind(one)) is not None] for part in (start, end))
        if min(len(before), len(after)) < _LEAST:
            continue
        a, b = statistics.median(before), statistics.median(after)
        worse = b - a > _GROWS if kind is _memory else b < a * (1 - _LOSES)
        found.append(Figure(name=name, start=a, end=b, decays=worse))
    return found


def _length(turn: Turn) -> float | None:
    return 1 + (turn.accepted or 0) / turn.drafts if turn.drafts else None


def _speed(turn: Turn) -> float | None:
    return turn.tokens / turn.seconds


def _memory(turn: Turn) -> float | None:
    return turn.memory
