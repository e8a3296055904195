"""Prompts: conversations by category, from a folder of JSON lines."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.errors import UsageError

MAX_FILE: Final = 16 * 1024 * 1024
MAX_PROMPTS: Final = 10_000
WARM_UP: Final = (
    "Name the planets of the solar system, one on each line.",
    "What happens to water when it freezes, and why does ice float?",
    "Describe an ordinary morning in a small harbour town.",
    "Which tools does a carpenter need to build a plain wooden chair?",
)
"""Warm-up prompts, which are never measured."""
REFERENCE: Final = "Write down the letters of the alphabet, each followed by three words that begin with it."
"""Sent before and after each cell. It is the same work each time, so that a slower machine shows."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One conversation up to the measured answer."""

    id: str
    category: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the fields of a chat completion request that belong to the prompt."""
        body: dict[str, Any] = {"messages": list(map(dict, self.messages))}
        if self.tools:
            body["tools"] = list(map(dict, self.tools))
        return body


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """All prompts of one folder."""

    name: str
    sha256: str
    """Over all files, by name."""
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """In the order of their files."""
        return tuple(dict.fromkeys(prompt.category for prompt in self.prompts))


def read_prompts(folder: Path, *, name: str) -> PromptSet:
    """Return the prompts of a folder: one CATEGORY.jsonl per category, one prompt per line.

    A line is {"prompt": "…"}, {"messages": […], "tools": […]} or {"turns": ["…", …]}, of which the first is asked,
    with an optional "id". In a folder with a single file, a line's own "category" comes before the file's name. Raises
    UsageError with file and line for anything else.
    """
    if not folder.is_dir():
        raise UsageError(f"--prompts: {folder} is not a folder")
    files = sorted(folder.glob("*.jsonl"))
    digest = hashlib.sha256()
    prompts: list[Prompt] = []
    for file in files:
        text = _text(file)
        digest.update(f"{file.name}\0{len(text)}\0{text}".encode())
        prompts += _of_file(file, text, single=len(files) == 1)
    if not prompts:
        raise UsageError(f"--prompts: {folder} contains no prompts; it needs one CATEGORY.jsonl per category")
    if len(prompts) > MAX_PROMPTS:
        raise UsageError(f"--prompts: {folder} holds {len(prompts)} prompts; the limit is {MAX_PROMPTS}")
    return PromptSet(name=name, sha256=digest.hexdigest(), prompts=tuple(prompts))


def chosen(prompts: PromptSet, *, categories: Sequence[str], each: int) -> tuple[Prompt, ...]:
    """Return the first `each` prompts of all or the given categories. Raises UsageError for an unknown category."""
    unknown = [category for category in categories if category not in prompts.categories]
    if unknown:
        raise UsageError(f"--category: {unknown[0]!r} is not one of {', '.join(prompts.categories)}")
    first: list[Prompt] = []
    for category in categories or prompts.categories:
        of_category = [prompt for prompt in prompts.prompts if prompt.category == category]
        first += of_category[: each or None]
    return tuple(first)


def mixed(prompts: Sequence[Prompt], at_least: int) -> tuple[Prompt, ...]:
    """Return the prompts with alternating categories, repeated until there are `at_least` of them."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    turns: list[Prompt] = []
    for turn in itertools.zip_longest(*by_category.values()):
        turns += filter(None, turn)
    return tuple(itertools.islice(itertools.cycle(turns), max(at_least, len(turns))))


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE:
            raise UsageError(f"{file}: larger than {MAX_FILE // 2**20} MiB")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            why = error.strerror
        else:
            why = "not UTF-8 text"
        raise UsageError(f"{file}: cannot read it: {why}") from None


def _of_file(file: Path, text: str, *, single: bool) -> Iterator[Prompt]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _prompt(line, f"{file}:{number}", file.stem, number, single=single)


def _prompt(line: str, place: str, category: str, number: int, *, single: bool) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{place}: not JSON") from None
    if not isinstance(entry, dict):
        raise UsageError(f"{place}: not a prompt; it needs the key prompt, messages or turns")
    if single and "category" in entry:
        category = _category(entry["category"], place)
    return Prompt(
        id=str(entry.get("id") or f"{category}-{number}")[:80],
        category=category,
        messages=_messages(entry, place),
        tools=_maps(entry.get("tools") or [], f"{place}: tools"),
    )


def _messages(entry: Mapping[str, Any], place: str) -> tuple[Mapping[str, Any], ...]:
    if "messages" not in entry:
        text = entry.get("prompt", entry.get("turns"))
        if isinstance(text, list) and text:
            text = text[0]
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{place}: the prompt is empty")
        return ({"role": "user", "content": text},)
    messages = _maps(entry["messages"], f"{place}: messages")
    contents = [str(message.get("content") or "") for message in messages]
    if not any(map(str.strip, contents)):
        raise UsageError(f"{place}: the prompt is empty")
    if any(not isinstance(message.get("role"), str) for message in messages):
        raise UsageError(f"{place}: messages: each needs a role and a content")
    return messages


def _category(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 60 or not value.isprintable():
        raise UsageError(f"{place}: category must be a word")
    return value


def _maps(value: Any, place: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(member, dict) for member in value):
        raise UsageError(f"{place}: must be a list of maps")
    return tuple(value)
