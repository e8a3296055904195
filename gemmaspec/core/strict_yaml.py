"""Strict YAML for profiles and patches: a small subset, with the line of every key.

It differs from YAML 1.1 in PyYAML, because each of these caused a failed start: duplicate keys are errors, `1.10` and
`0.80` stay text (they may be versions), `NO` is not false, and aliases, merge keys and tags are errors.

What a parser finds wrong is explained to the person who wrote the file.
"""

from __future__ import annotations

import functools
import pathlib
import re
import unicodedata
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

from gemmaspec.core.errors import GemmaspecError, ProfileError

MAX_CHARACTERS: Final = 1_000_000
MAX_DEPTH: Final = 20
_MERGE: Final = "<<"
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Only its events are used, because libyaml builds nodes by recursion in C, and a few thousand brackets crash it."""
_VALUE: Final = re.compile(r"\s*(?:- )*[^\s:#][^:#]*:\s+\S")
_INDENT: Final = re.compile(r"[ \t]*")
_QUOTES: Final = "\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u201b\u00ab\u00bb\u00b4"
"""Curly quotes, guillemets and an acute accent."""
_NAMES: Final = {
    "\u00a0": "a no-break space",
    "\u00ad": "a soft hyphen",
    "\u200b": "a zero-width space",
    "\u2060": "a word joiner",
    "\ufeff": "a byte order mark",
}

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where a value was written; `line` is 1-based, 0 for a value that came from the command line."""

    file: str
    line: int

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}"
        return self.file


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
        line, sentence = _undecodable(data, problem.start)
        raise error(f"{file}:{line}: {sentence}") from None


def parse(
    text: str | bytes, *, file: str, error: type[GemmaspecError] = ProfileError, references: bool = False
) -> Document:
    """Parse one YAML document into plain data with places. Bytes are those of a file in UTF-8.

    `references` allows aliases and merge keys, which Compose files have: an alias is the same object, and never a copy.
    Raise `error` with file:line for anything that is not plain maps, lists and scalars.
    """
    if isinstance(text, bytes):
        text = read_text(text, file=file, error=error)
    if len(text) > MAX_CHARACTERS:
        raise error(f"{file}: larger than {MAX_CHARACTERS} characters")
    try:
        return _Reader(text, file, error, references=references).document()
    except yaml.MarkedYAMLError as problem:
        line, sentence = _explained(problem, text)
        raise error(f"{file}:{line}: {sentence}") from None
    except (yaml.YAMLError, ValueError) as problem:
        raise error(f"{file}: {str(problem).splitlines()[0]}") from None


@functools.cache
def table(file: pathlib.Path) -> Any:
    """Return the content of a table that ships with the code, read once. It is shared: change nothing in it."""
    return parse(file.read_text(encoding="utf-8"), file=file.name).data


def scalar(text: str) -> str | int | bool | None:
    """Return the value of an unquoted scalar: null, true, false, a decimal integer, else the text itself."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return text


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
            if event.implicit[0]:
                return self._scalar(event, path)
            return event.value
        if isinstance(event, SequenceStartEvent):
            return list(self._items(path))
        assert isinstance(event, MappingStartEvent)
        pairs = list(self._pairs(path))
        merged: dict[str, Any] = {}
        for key, value in pairs:
            if key != _MERGE:
                continue
            # of several merged maps the first wins, and a key of the map itself wins over all
            for inherited in value if isinstance(value, list) else [value]:
                merged |= {name: inner for name, inner in inherited.items() if name not in merged}
        return merged | {key: value for key, value in pairs if key != _MERGE}

    def _scalar(self, event: ScalarEvent, path: Path) -> str | int | bool | None:
        if odd := _odd_character(event.value):
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
            if not isinstance(event, ScalarEvent) or event.tag or "\n" in event.value:
                raise self._refused(event, "a key must be a word")
            key, place = event.value, self._place(event)
            if key == _MERGE and self._anchors is None:
                raise self._refused(
                    event, "merge keys (<<) are not supported; use extends: NAME to inherit from another profile"
                )
            if odd := _odd_character(key):
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


def _explained(problem: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """Return the 1-based line of a parser's error, and one sentence that says what to change."""
    mark = problem.problem_mark or problem.context_mark
    number, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    if "\t" in _indent(line):
        return number + 1, "the line begins with a tab; YAML indents with spaces"
    if line.lstrip().startswith("--"):
        flag = line.split()[0].partition("=")[0]
        key = flag.removeprefix("--").replace("-", "_")
        if key == "speculative_config":
            named = "speculative: {method: mtp, …}"
        else:
            named = f"serve: {{{key}: …}}"
        return number + 1, f"{flag} is a flag of a command line; a profile writes {named}"
    problem_text = str(problem.problem)
    if problem_text.startswith("mapping values"):
        return number + 1, _unexpected_colon(lines[: number + 1], column)
    if "unexpected end of stream" in problem_text or problem_text.startswith("did not find expected ',' or"):
        return _unclosed(problem, number)
    if problem_text.startswith("found character that cannot start"):
        return number + 1, f"a value cannot begin with {line[column : column + 1]!r}; put it in quotes"
    if problem_text == "could not find expected ':'" and problem.context_mark:
        number = problem.context_mark.line
        return number + 1, f"{lines[number].strip()[:60]!r} is not `key: value`; put a space after the colon"
    if problem_text == "did not find expected key":
        return number + 1, _unexpected_line(line, column)
    if "<document start>" in problem_text:
        return number + 1, "indented less than the line above; all keys of one level must begin in the same column"
    if "escape character" in problem_text:
        return number + 1, "unknown escape in a double-quoted text; write '…', or double the backslash"
    return number + 1, problem_text


def _unexpected_colon(lines: list[str], column: int) -> str:
    line = lines[-1]
    if re.search(r":\s", line[:column]):
        key, _, value = line.strip().partition(":")
        return f"the value contains a colon; put it in quotes: {key}: '{value.strip()}'"
    written = [line for line in lines[:-1] if line.strip()]
    above = next((line for line in reversed(written) if not line.lstrip().startswith("#")), "")
    if _VALUE.match(above) and len(_indent(line)) > len(_indent(above)):
        return "indented more than the line above, which has a value; keys of one level must begin in the same column"
    return f"{above.strip()[:60]!r}, the line above, is not `key: value`; put a space after the colon"


def _unexpected_line(line: str, column: int) -> str:
    if line[:column].strip():
        return "there is text after the closing quote or bracket; put the whole value into one pair of quotes"
    if line.lstrip().startswith("- "):
        return "a list item is between keys; indent it below the key that it belongs to"
    return "indented differently from the keys around it; all keys of one level must begin in the same column"


def _unclosed(problem: yaml.MarkedYAMLError, number: int) -> tuple[int, str]:
    if problem.context_mark:
        begin = problem.context_mark.line
    else:
        begin = number
    kind = str(problem.context)
    what = "["
    if "scalar" in kind:
        what = "quote"
    elif "mapping" in kind:
        what = "{"
    return begin + 1, f"the {what} that opens in this line is not closed"


def _odd_character(word: str) -> str | None:
    """Return the problem with a key or an unquoted value: a space that YAML does not know, or a typographic quote."""
    for char in word:
        if char in _NAMES or (unicodedata.category(char) == "Zs" and char != " "):
            name = _NAMES.get(char) or unicodedata.name(char, "a character").lower()
            return f"contains {name} (U+{ord(char):04X}), which is not a space in YAML; retype it, or quote the value"
    if word[:1] and word[0] in _QUOTES:
        return f"begins with {word[0]} (U+{ord(word[0]):04X}), which is not a quote in YAML; write ' or \""
    return None


def _undecodable(data: bytes, position: int) -> tuple[int, str]:
    """Return the 1-based line of the first byte that is not UTF-8, and one sentence on it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return 1, "looks like UTF-16; save it as UTF-8"
    line = data[:position].count(b"\n") + 1
    column = position - (data.rfind(b"\n", 0, position) + 1) + 1
    return line, f"is not UTF-8 text: byte 0x{data[position]:02x} at column {column}; save it as UTF-8"


def _indent(line: str) -> str:
    indent = _INDENT.match(line)
    if indent:
        return indent[0]
    return ""
