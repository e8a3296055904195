"""Records of the state folder: dataclasses written as JSON, and read as exactly what they were, or not at all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gemmaspec.core.files import MAX_STATE, UnreadableFile, read_regular, write_whole

T = TypeVar("T")


def text_of(record: Any) -> str:
    """Return a record as JSON, with its schema number."""
    return json.dumps({"schema": 1, **dataclasses.asdict(record)}, indent=1, default=str) + "\n"


def write(file: Path, record: Any, *, mode: int = 0o644) -> None:
    """Write a record. Raises EnvironmentMissing if that fails; the file is then unchanged."""
    write_whole(file, text_of(record), mode=mode)


def parse(kind: type[T], text: bytes | str | None) -> T | None:
    """Return the record in a text; None for no text, and for one that is not such a record."""
    try:
        if text is None:
            return None
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError:
        return None


def read(kind: type[T], file: Path, *, hint: str | None = None, limit: int = MAX_STATE) -> T | None:
    """Return the record in a file; None if the file is missing. Raises UnreadableFile if it is damaged."""
    text = read_regular(file, limit=limit)
    record = parse(kind, text)
    if record is None and text is not None:
        raise UnreadableFile(file, "it is damaged", hint=hint)
    return record


def kept(kind: type[T], file: Path, *, limit: int = MAX_STATE) -> T | None:
    """Return the record in a file; None if it is missing, or cannot be read: for records that may be lost."""
    try:
        return parse(kind, read_regular(file, limit=limit))
    except UnreadableFile:
        return None


_adapters: dict[type[Any], TypeAdapter[Any]] = {}
"""One for each kind of record, since making one takes longer than reading."""


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
