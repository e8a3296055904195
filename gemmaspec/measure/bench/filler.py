"""Text that fills a prompt up to a context length: entries of an invented logbook, no two alike."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gemmaspec.measure.bench.prompts import Prompt

_LOGBOOK: Final[Mapping[str, Sequence[str]]] = json.loads(Path(__file__).with_name("logbook.json").read_text("utf-8"))


def filler(characters: int, *, seed: str) -> str:
    """Return about `characters` characters of it, the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311 - a text that repeats itself
    entries: list[str] = []
    length = 0
    for entry in _entries(dice):
        if length >= characters:
            break
        entries.append(entry)
        length += len(entry) + 1
    return "\n".join(entries)[: max(characters, 0)]


def lengthened(prompt: Prompt, characters: int) -> Prompt:
    """Return the prompt with that much of the logbook before its first user message."""
    messages: list[Any] = [dict(message) for message in prompt.messages]
    place = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    book = filler(characters, seed=prompt.id)
    text = messages[place].get("content") or ""
    messages[place]["content"] = f"From the logbook of the works:\n{book}\n\nLeave the logbook aside now.\n{text}"
    return Prompt(id=prompt.id, category=prompt.category, messages=tuple(messages), tools=prompt.tools)


def padded(prompt: Prompt, words: int) -> Prompt:
    """Return the prompt with so many more words in its last message, each of them one token."""
    *before, last = prompt.messages
    text = f"{last['content']}{' a' * words}"
    return replace(prompt, messages=(*before, {**last, "content": text}))


def _entries(dice: random.Random) -> Iterator[str]:
    number = dice.randrange(100, 900)
    while True:
        number += 1
        did = dice.choice(_LOGBOOK["did"]).format(n=dice.randrange(2, 99), m=dice.randrange(2, 99))
        hour = f"{dice.randrange(24):02}:{dice.randrange(60):02}"
        who, then = dice.choice(_LOGBOOK["who"]).capitalize(), dice.choice(_LOGBOOK["then"])
        yield f"Entry {number}, {hour}. {who} {did}. {then}"
