"""A lock as text: written for people to read, read again strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from gemmaspec import strict_yaml
from gemmaspec.errors import ProfileError
from gemmaspec.lock.model import Lock
from gemmaspec.sentences import sentence
from gemmaspec.strict_yaml import Document, Place

MAX_CHARACTERS: Final = 64 * 1024
"""A lock has about one thousand."""


def lock_text(lock: Lock) -> str:
    """Return the file's text; every value is quoted, so that YAML reads it as it is."""
    head = (
        f"# What the profile {lock.profile} runs, pinned by `gemmaspec lock`. Do not edit it, lock again.\n"
        "# `gemmaspec up --locked` runs this and nothing else.\n"
    )
    content = lock.model_dump(by_alias=True, exclude_none=True)
    return head + "".join(f"{line}\n" for line in _lines(content, ""))


def parse_lock(text: str, *, file: str) -> Lock:
    """Return the lock in a file's text. Raise ProfileError with every finding as file:line: key: what is wrong."""
    if len(text) > MAX_CHARACTERS:
        raise ProfileError(f"{file}: larger than {MAX_CHARACTERS} characters, so it is no lock", hint=_again(file))
    document = strict_yaml.parse(text, file=file)
    try:
        return Lock.model_validate(document.data)
    except ValidationError as error:
        findings = (_finding(item, document, file) for item in error.errors(include_url=False))
        raise ProfileError("\n".join(findings), hint=_again(file)) from None


def _lines(content: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}"


def _finding(error: Mapping[str, Any], document: Document, file: str) -> str:
    path = tuple(error["loc"])
    place = next(
        (document.places[path[:end]] for end in range(len(path), -1, -1) if path[:end] in document.places),
        Place(file, 1),
    )
    said = sentence(error)
    return f"{place}: {'.'.join(map(str, path))}: {said}" if path else f"{place}: {said}"


def _again(file: str) -> str:
    return f"rm {file}    # then lock the profile again: gemmaspec lock PROFILE"
