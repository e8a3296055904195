"""YAML as people write profiles: strict, small, and with the line of every key.

Differences from YAML 1.1 as PyYAML reads it, each because the other reading has cost somebody a start:
duplicate keys are errors, `1.10` and `0.80` stay text (versions!), `NO` is not false, and anchors,
aliases, merge keys and tags are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gemmaspec.errors import GemmaspecError, ProfileError

MAX_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 20
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_PLAIN_TAGS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq")}

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


class _Loader(yaml.SafeLoader):
    """Leaves every plain scalar as text and refuses aliases (a few lines of them expand to gigabytes)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not used here", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def parse(text: str, *, file: str, error: type[GemmaspecError] = ProfileError) -> Document:
    """Parse one YAML document into plain data with places.

    Raises `error` with file:line for anything that is not plain maps, lists and scalars.
    """
    if len(text) > MAX_BYTES:
        raise error(f"{file}: larger than {MAX_BYTES} characters")
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        raise error(f"{file}:{mark.line + 1 if mark else 1}: {problem.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as problem:
        reason = "nested too deeply" if isinstance(problem, RecursionError) else str(problem).splitlines()[0]
        raise error(f"{file}: {reason}") from None
    if node is None:
        return Document({}, {(): Place(file, 1)})
    places: dict[Path, Place] = {(): Place(file, 1)}
    return Document(_value(node, (), places, file, error), places)


def _value(node: Node, path: Path, places: dict[Path, Place], file: str, error: type[GemmaspecError]) -> Any:
    place = Place(file, node.start_mark.line + 1)
    if len(path) > MAX_DEPTH:
        raise error(f"{place}: nested more than {MAX_DEPTH} levels deep")
    if node.tag not in _PLAIN_TAGS:
        raise error(f"{place}: the tag {node.tag} is not used here")
    if isinstance(node, ScalarNode):
        return scalar(node.value) if node.style is None else node.value
    if isinstance(node, SequenceNode):
        return [_item(child, (*path, i), places, file, error) for i, child in enumerate(node.value)]
    assert isinstance(node, MappingNode)
    return dict(_items(node, path, places, file, error))


def _item(node: Node, path: Path, places: dict[Path, Place], file: str, error: type[GemmaspecError]) -> Any:
    places[path] = Place(file, node.start_mark.line + 1)
    return _value(node, path, places, file, error)


def _items(
    node: MappingNode, path: Path, places: dict[Path, Place], file: str, error: type[GemmaspecError]
) -> Iterator[tuple[str, Any]]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise error(f"{file}:{line}: a key must be a word")
        key = key_node.value
        if key in seen:
            raise error(f"{file}:{line}: the key '{key}' is already given in line {seen[key]}")
        seen[key] = line
        places[(*path, key)] = Place(file, line)
        yield key, _value(value_node, (*path, key), places, file, error)


def scalar(text: str) -> str | int | bool | None:
    """The value of an unquoted scalar: null, true, false, a decimal integer, else the text itself."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _INTEGER.fullmatch(text) else text
