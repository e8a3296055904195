"""stdout is data, stderr is progress: every print of the command line goes through here."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import secrets
import shutil
import sys
import textwrap
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import Any, Final, TextIO

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.redact import redact

_INK: Final = chr(0xF0000 + secrets.randbelow(0xFFFE))
"""Marks a colour until it is printed: a character that no text from elsewhere can know."""

_COLOUR: Final = re.compile(f"{_INK}([0-9]{{1,3}}){_INK}")

_OBEYED: Final = re.compile(
    "(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal obeys instead of showing: controls other than tab and the end of a line, what changes the
direction of the text, and half characters, which cannot be printed."""


_COLUMN: Final = re.compile(r"\s*\S(?:.*?\S)??\s{2,}(?=\S)")
"""A line's first column, and the two blanks or more that end it."""

_COMMAND: Final = re.compile(r"(.*\b(?:try|next|run): +|\s*ask +|\s*next +(?=gemmaspec ))(\S.*)")
"""A line that ends in a command to copy."""


def visible(text: str) -> str:
    """Return text of any origin for a terminal: what it would obey is escaped, and only coloured() colours."""
    text = _OBEYED.sub(lambda match: repr(match[0])[1:-1], text)
    return _COLOUR.sub(lambda match: f"\x1b[{match[1]}m", text)


def data(text: str) -> None:
    """Print the command's result on standard output, unwrapped."""
    text = visible(redact(text))
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def told(*lines: str) -> None:
    """Print lines for people. On a terminal, those that are too long continue on the next one, indented.

    The end of a line in one of them is shown, because text from elsewhere could write a line of ours with it.
    """
    for line in lines:
        data(fitted(line.replace("\n", r"\n"), width_of(sys.stdout)))


def width_of(stream: TextIO) -> int | None:
    """Return the width in columns, from $COLUMNS or the terminal; None for a pipe or a file."""
    if (asked := os.environ.get("COLUMNS", "")).isdigit() and int(asked) > 0:
        return int(asked)
    if stream.isatty():
        return shutil.get_terminal_size().columns
    return None


def fitted(text: str, width: int | None) -> str:
    """Return `text` with long lines broken at blanks, never inside a word, a path or a command to copy.

    Continuation lines are indented to the line's second column if it has one (after two blanks) that begins in the
    left half, else by two more. Colours take no room.
    """
    lines = []
    for line in text.split("\n"):
        if width:
            line = _copied(line) or _fitted(line, width)
        else:
            line = _copied(line) or line
        lines.append(line)
    return "\n".join(lines)


def _copied(line: str) -> str | None:
    """Return a line with a command to copy: never wrapped, and its comment on a line of its own; None for others."""
    match = _COMMAND.match(line)
    if not match:
        return None
    command, _, comment = match[2].partition("    # ")
    if comment and match[1].strip() != "ask":  # a request's own text may contain the same characters
        return f"{match[1]}{command}\n{' ' * len(match[1])}# {comment}"
    return line


def _fitted(line: str, width: int) -> str:
    if len(_COLOUR.sub("", line)) <= width:
        return line
    head, indent = "", min(len(line) - len(line.lstrip()) + 2, width // 2)
    column = _COLUMN.match(line)
    if column and (shown := len(_COLOUR.sub("", column[0]))) <= width // 2:
        head, indent = column[0], shown
    rest = line[len(head) :]
    first = " " * indent if head else line[: len(line) - len(line.lstrip())]  # in the place of the head and its colours
    text = textwrap.fill(
        rest.strip(),
        width,
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return head + text[indent:] if head else text


def json_data(value: Mapping[str, Any]) -> None:
    """Print a JSON document with its schema number. Control characters are escaped, so that no terminal obeys them."""
    text = json.dumps({"schema": 1, **value}, indent=2, ensure_ascii=False, default=_plain)
    data(_OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _plain(value: Any) -> Any:
    """Return what JSON has no form for: a record as its document or its fields, a path as text, a set in order."""
    if hasattr(value, "document"):
        return value.document()
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Set | Mapping):
        if isinstance(value, Set):
            return sorted(value)
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    return value.model_dump(mode="json")


def progress(text: str) -> None:
    """Print progress on stderr. A reader that left or a full disk does not end the command."""
    try:
        sys.stderr.write(visible(fitted(redact(text), width_of(sys.stderr))) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        _let_go(sys.stderr)


def failure(error: GemmaspecError, *, as_json: bool) -> int:
    """Print an expected error and return its exit code."""
    if as_json:
        kind = type(error).__name__
        with contextlib.suppress(GemmaspecError, BrokenPipeError):
            json_data({"ok": False, "error": {"kind": kind, "message": error.message, "hint": error.hint}})
    progress(coloured("error: ", 31, sys.stderr) + error.message)
    if error.hint:
        progress(f"  try: {error.hint}")
    return error.exit_code


def usage(error: Any, *, as_json: bool) -> int:
    """Print an error of the command line parser in its own words and return its exit code."""
    if as_json:
        message = error.format_message()
        json_data({"ok": False, "error": {"kind": "UsageError", "message": message, "hint": None}})
    written = io.StringIO()
    error.show(written)
    progress(
        re.sub(
            r"Input should be a valid number, unable to parse string.*", "must be a number", written.getvalue().rstrip()
        )
    )
    return int(error.exit_code)


def broken_pipe() -> int:
    """Return the exit code after the reader of stdout left, as `| head` does; nothing more is written there."""
    _let_go(sys.stdout)
    return 1


def unwritten(error: OSError) -> GemmaspecError:
    """Return the error for standard output that cannot be written, as on a full disk."""
    _let_go(sys.stdout)
    return GemmaspecError(f"cannot write standard output: {error.strerror}")


def _let_go(stream: TextIO) -> None:
    """Discard further output, so that Python does not fail on it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def coloured(text: str, colour: int, stream: TextIO | None = None) -> str:
    """Return text in one of ANSI's colours, for a terminal that wants them; by default of standard output."""
    if wants_colour(stream or sys.stdout):
        return f"{_INK}{colour}{_INK}{text}{_INK}0{_INK}"
    return text


def wants_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that wants colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
