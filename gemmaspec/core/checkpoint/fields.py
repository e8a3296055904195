"""Typed, range-checked access to untrusted JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.core.errors import CheckpointError

MOST_ITEMS: Final = 65_536
"""Maximum length of a list in a checkpoint's JSON."""
_LARGEST: Final = 2**40


def load_object(raw: bytes, where: str) -> dict[str, Any]:
    """Parse one JSON object.

    Raise CheckpointError, beginning with `where`, for anything else, including duplicate keys and deep nesting.
    """
    refuse_pointer(raw, where)
    try:
        content = json.loads(raw, object_pairs_hook=_once)
    except RecursionError:
        raise CheckpointError(f"{where}: nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, a duplicate key, a number with thousands of digits
        if isinstance(error, UnicodeDecodeError):
            damaged = "it is damaged, no text: "
        else:
            damaged = "invalid JSON: "
        raise CheckpointError(f"{where}: {damaged}{printable(str(error))}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{where}: must be a JSON object, got {_kind(content)}")
    return content


def refuse_pointer(raw: bytes, where: str) -> None:
    """Raise CheckpointError if a file's beginning is that of a pointer of Git LFS.

    Its format: the specification of Git LFS, version 1.
    """
    if raw.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{where} is a pointer of Git LFS, not the file itself", hint="run git lfs pull in the checkpoint's folder"
        )


def _is_short_text(item: object) -> bool:
    return isinstance(item, str) and len(item) <= 400 and item.isprintable()


def _is_count(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _LARGEST


def printable(text: str, width: int = 200) -> str:
    """Return untrusted text made safe for a terminal."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    if len(clean) <= width:
        return clean
    return clean[: width - 1] + "…"


class Fields:
    """One JSON object and its place; reading a value of the wrong type or size raises CheckpointError."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.content = content
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.content.get(name) is not None

    def count(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number; `default` if it is missing or null."""
        value = self.content.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number", value)
        if not least <= value <= _LARGEST:
            raise self._wrong(name, f"between {least} and {_LARGEST}", value)
        return value

    def maybe_count(self, name: str) -> int | None:
        """Return a whole number; None if it is missing or null."""
        if name in self:
            return self.count(name)
        return None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false; `default` if it is missing or null."""
        value = self.content.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a printable string of at most 400 characters."""
        value = self.content.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value) > 400 or not value.isprintable():
            raise self._wrong(name, "a short text", value)
        return value

    def maybe_text(self, name: str) -> str | None:
        """Return a printable string; None if it is missing or null."""
        if name in self:
            return self.text(name)
        return None

    def section(self, name: str) -> Fields | None:
        """Return an object inside this one; None if it is missing or null."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, f"{self.where}: {name}" if ":" not in self.where else f"{self.where}.{name}")

    def items(self, name: str) -> list[Any]:
        """Return a list of bounded length; empty if it is missing or null."""
        value = self.content.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise self._wrong(name, f"a list of at most {MOST_ITEMS} entries", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of printable strings."""
        value = self.items(name)
        if not all(map(_is_short_text, value)):
            raise self._wrong(name, "a list of short texts", value)
        return tuple(value)

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        value = self.items(name)
        if not all(map(_is_count, value)):
            raise self._wrong(name, "a list of whole numbers", value)
        return tuple(value)

    def _wrong(self, name: str, wanted: str, value: object) -> CheckpointError:
        if value is None:
            return CheckpointError(f"{self.where}: {name} is missing; it must be {wanted}")
        text = printable(json.dumps(value, default=str)[:300], 60)
        return CheckpointError(f"{self.where}: {name} must be {wanted}, got {text}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")
