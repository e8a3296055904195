"""Strict YAML for profiles and patches: a small subset, with the line of every key.

It differs from YAML 1.1 in PyYAML, because each of these caused a failed start: duplicate keys are errors, `1.10` and
`0.80` stay text (they may be versions), `NO` is not false, and aliases, merge keys and tags are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from gemmaspec.errors import GemmaspecError, ProfileError
from gemmaspec.yaml_problems import explained, odd_character, undecodable

MAX_CHARACTERS: Final = 1_000_000
MAX_DEPTH: Final = 20
_MERGE: Final = "<<"
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Only its events are used, because libyaml builds nodes by recursion in C, and a few thousand brackets crash it."""

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where a value was written; `line` is 1-based, 0 for a value that came from the command line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Document:
    """A parsed document: plain data, and the place of every key and item by its path."""

    data: Any
    places: dict[Path, Place]
    empty: frozenset[Path] = frozenset()
    """Keys without a value; an explicit `null` does not count."""


def read_text(data: bytes, *, file: str, error: type[GemmaspecError] = ProfileError) -> str:
    """Return the bytes of a file as text. Raise `error` with line and byte for invalid UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line, sentence = undecodable(data, problem.start)
        raise error(f"{file}:{line}: {sentence}") from None


def parse(text: str, *, file: str, error: type[GemmaspecError] = ProfileError, references: bool = False) -> Document:
    """Parse one YAML document into plain data with places.

    `references` allows aliases and merge keys, which Compose files have: an alias is the same object, and never a copy.
    Raise `error` with file:line for anything that is not plain maps, lists and scalars.
    """
    if len(text) > MAX_CHARACTERS:
        raise error(f"{file}: larger than {MAX_CHARACTERS} characters")
    try:
        return _Reader(text, file, error, references=references).document()
    except yaml.MarkedYAMLError as problem:
        line, sentence = explained(problem, text)
        raise error(f"{file}:{line}: {sentence}") from None
    except (yaml.YAMLError, ValueError) as problem:
        raise error(f"{file}: {str(problem).splitlines()[0]}") from None


def scalar(text: str) -> str | int | bool | None:
    """Return the value of an unquoted scalar: null, true, false, a decimal integer, else the text itself."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _INTEGER.fullmatch(text) else text


class _Reader:
    """Builds plain data from the parser's events."""

    def __init__(self, text: str, file: str, error: type[GemmaspecError], *, references: bool) -> None:
        self._events: Iterator[Event] = iter(yaml.parse(text, Loader=_PARSER))
        self._file = file
        self._error = error
        self._places: dict[Path, Place] = {(): Place(file, 1)}
        self._empty: set[Path] = set()
        self._anchors: dict[str, Any] | None = {} if references else None

    def document(self) -> Document:
        """Return the whole document; an empty text is an empty map."""
        next(self._events)  # the stream's start
        if not isinstance(next(self._events), DocumentStartEvent):
            return Document({}, self._places)
        data = self._value(next(self._events), ())
        next(self._events)  # the document's end
        after = next(self._events)
        if isinstance(after, DocumentStartEvent):
            raise self._refused(after, "a second document is not allowed")
        return Document(data, self._places, frozenset(self._empty))

    def _value(self, event: Event, path: Path) -> Any:
        if isinstance(event, AliasEvent):
            if self._anchors is None:
                raise self._refused(event, "aliases are not supported")
            if event.anchor not in self._anchors:
                raise self._refused(event, f"*{event.anchor} stands before the end of &{event.anchor}")
            return self._anchors[event.anchor]
        value = self._plain(event, path)
        if self._anchors is not None and isinstance(event, NodeEvent) and event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _plain(self, event: Event, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            raise self._refused(event, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, NodeEvent) and getattr(event, "tag", None):
            raise self._refused(event, f"the tag {event.tag} is not supported")  # type: ignore[attr-defined]
        if isinstance(event, ScalarEvent):
            return self._scalar(event, path) if event.implicit[0] else event.value
        if isinstance(event, SequenceStartEvent):
            return list(self._items(path))
        assert isinstance(event, MappingStartEvent)
        pairs = list(self._pairs(path))
        merged: dict[str, Any] = {}
        for key, value in pairs:  # of several merged maps the first wins, and a key of the map itself wins over all
            for inherited in (value if isinstance(value, list) else [value]) if key == _MERGE else ():
                merged |= {name: inner for name, inner in inherited.items() if name not in merged}
        return merged | {key: value for key, value in pairs if key != _MERGE}

    def _scalar(self, event: ScalarEvent, path: Path) -> str | int | bool | None:
        if odd := odd_character(event.value):
            raise self._refused(event, f"the value {odd}")
        if not event.value:
            self._empty.add(path)
        return scalar(event.value)

    def _items(self, path: Path) -> Iterator[Any]:
        for index, event in enumerate(self._events):
            if isinstance(event, SequenceEndEvent):
                return
            inner = (*path, index)
            self._places[inner] = self._place(event)
            yield self._value(event, inner)

    def _pairs(self, path: Path) -> Iterator[tuple[str, Any]]:
        lines: dict[str, int] = {}
        for event in self._events:
            if isinstance(event, MappingEndEvent):
                return
            if not isinstance(event, ScalarEvent) or event.tag:
                raise self._refused(event, "a key must be a word")
            key, place = event.value, self._place(event)
            if key == _MERGE and self._anchors is None:
                raise self._refused(
                    event, "merge keys (<<) are not supported; use extends: NAME to inherit from another profile"
                )
            if odd := odd_character(key):
                raise self._refused(event, f"the key {key.strip()!r} {odd}")
            if key in lines:
                raise self._refused(event, f"duplicate key '{key}'; the first one is in line {lines[key]}")
            lines[key] = place.line
            self._places[(*path, key)] = place
            value = self._value(next(self._events), (*path, key))
            many = value if isinstance(value, list) else [value]
            if key == _MERGE and not all(isinstance(item, dict) for item in many):
                raise self._refused(event, "<< takes a map, or a list of maps")
            yield key, value

    def _place(self, event: Event) -> Place:
        mark = event.start_mark
        return Place(self._file, mark.line + 1 if mark else 1)

    def _refused(self, event: Event, why: str) -> GemmaspecError:
        return self._error(f"{self._place(event)}: {why}")
