"""What a text gives away: markers of the chat format, loops, blanks without end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

MARKERS: Final = (
    "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
    "<tool_response|>", "<|think|>", '<|"|>',
)  # fmt: skip
"""Tokens of Gemma 4's chat format, which no answer may hold."""
_THOUGHT: Final = "thought\n"
"""How a thought begins once its markers were cut off."""
MOST_BLANKS: Final = 64
MOST_REPEATS: Final = 8
_WORDS: Final = 8


def leak(text: str) -> str | None:
    """Return what of a thought or of the chat format is in a text; None if it is clean."""
    if text.startswith(_THOUGHT):
        return "the text begins with the thought"
    for marker in MARKERS:
        if marker in text:
            return f"the text holds {marker}"
    return None


def loop(text: str) -> str | None:
    """Return how a text goes round in circles; None if it does not."""
    blanks = len(text) - len(text.rstrip())
    if blanks >= MOST_BLANKS:
        return f"{blanks} blanks at the end"
    repeats = Counter(_grams(text.split(), _WORDS)).most_common(1)
    if repeats and repeats[0][1] > MOST_REPEATS:
        return f"the same {_WORDS} words {repeats[0][1]} times"
    return None


def variety(text: str) -> float | None:
    """Return the share of runs of four words that are different ones; None for a text of under 24 words."""
    words = text.split()
    if len(words) < 24:
        return None
    grams = _grams(words, 4)
    return len(set(grams)) / len(grams)


def _grams(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
