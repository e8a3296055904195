"""Text that fills a prompt up to a context length: entries of an invented logbook, no two alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from gemmaspec.bench.prompts import Prompt

_WHO: Final = ("Mara", "the night crew", "Ilias", "the harbour pilot", "Ndeye", "both apprentices", "old Tomas", "Ruth")
_DID: Final = (
    "checked the pumps of basin {n} and wrote down {m} litres a minute",
    "moved {n} crates of bearings to shelf {m}",
    "found the valve at post {n} stiff and gave it {m} turns with the long key",
    "read the gauge at the weir: {n} centimetres, {m} more than the week before",
    "repaired the lamp above door {n} after {m} minutes on the ladder",
    "measured {n} degrees in the boiler room and opened {m} windows",
    "received {n} letters, of which {m} were for the office upstairs",
    "counted {n} swans on the canal, {m} of them grey",
    "paid {n} crowns for rope and {m} for paint",
    "sent {n} samples to the laboratory and kept {m}",
)
_THEN: Final = (
    "Nothing else to report.",
    "The next shift was told.",
    "It will have to be done again in the spring.",
    "The owner wants to see the figures on Monday.",
    "This took longer than planned, because of the rain.",
    "See also the entry of the previous month.",
)


def filler(characters: int, *, seed: str) -> str:
    """Return about `characters` characters of it, the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311 - a text that repeats itself
    found: list[str] = []
    length = 0
    for entry in _entries(dice):
        if length >= characters:
            break
        found.append(entry)
        length += len(entry) + 1
    return "\n".join(found)[: max(characters, 0)]


def lengthened(prompt: Prompt, characters: int) -> Prompt:
    """Return the prompt with that much of the logbook before its first user message."""
    messages: list[Any] = [dict(one) for one in prompt.messages]
    place = next((i for i, one in enumerate(messages) if one["role"] == "user"), 0)
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
        did = dice.choice(_DID).format(n=dice.randrange(2, 99), m=dice.randrange(2, 99))
        hour = f"{dice.randrange(24):02}:{dice.randrange(60):02}"
        yield f"Entry {number}, {hour}. {dice.choice(_WHO).capitalize()} {did}. {dice.choice(_THEN)}"
