"""The facts in a tokenizer's files on which two checkpoints must agree.

tokenizer.json of a Gemma 4 has about 32 MB. Its control tokens are at the beginning (`added_tokens`, before `model`),
so the first part of the file suffices for them. sha256 shows whether two whole files are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gemmaspec.core.checkpoint.fields import Fields, load_object
from gemmaspec.core.errors import CheckpointError

FIRST_PIECE: Final = 64 * 1024
"""Bytes of tokenizer.json to read for its control tokens."""


def added_tokens(piece: bytes) -> dict[str, int]:
    """Return control token → id from the beginning of a tokenizer.json, for every complete entry."""
    text = piece.decode("utf-8", errors="replace")
    start = text.find('"added_tokens"')
    start = text.find("[", start) if start >= 0 else -1
    if start < 0:
        return {}
    entries = _whole_entries(text, start + 1)
    special = [entry for entry in entries if entry.get("special") is True]
    return {entry["content"]: entry["id"] for entry in special if _is_token(entry)}


def named_tokens(config: Fields, ids: Mapping[str, int]) -> dict[str, int]:
    """Return control token → id from tokenizer_config.json: its own table, else its names with the ids of config.json.

    A name without a token stands for itself.
    """
    table = config.section("added_tokens_decoder")
    if table:
        listed = [{**entry, "id": int(key)} for key, entry in table.content.items() if _is_listed(key, entry)]
        special = [entry for entry in listed if entry.get("special")]
        return {entry["content"]: entry["id"] for entry in special if _is_token(entry)}
    named = {}
    for name, number in ids.items():
        named[_token(config.content.get(name)) or name] = number
    return named


def words(raw: bytes, where: str) -> dict[str, int]:
    """Return token → id for a whole tokenizer.json. Raise CheckpointError if it is invalid."""
    model = load_object(raw, where).get("model")
    if isinstance(model, dict):
        vocabulary = model.get("vocab")
    else:
        vocabulary = None
    if isinstance(vocabulary, list):  # a Unigram model has pairs of token and score
        pairs, vocabulary = vocabulary, {}
        for at, entry in enumerate(pairs):
            if isinstance(entry, list) and entry:
                vocabulary[str(entry[0])] = at
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise CheckpointError(f"{where}: the vocabulary is missing")
    return vocabulary


def _whole_entries(text: str, at: int) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    while True:
        at = _next_value(text, at)
        if at >= len(text) or text[at] != "{":
            return
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # truncated, or not JSON
            return
        yield entry


def _next_value(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _is_listed(key: str, entry: object) -> bool:
    return key.isdecimal() and len(key) < 10 and isinstance(entry, dict)


def _is_token(entry: Mapping[str, Any]) -> bool:
    content, number = entry.get("content"), entry.get("id")
    return isinstance(content, str) and 0 < len(content) <= 100 and isinstance(number, int)


def _token(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    if isinstance(value, str) and 0 < len(value) <= 100:
        return value
    return None
