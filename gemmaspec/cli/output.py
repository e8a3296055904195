"""stdout is data, stderr is progress: every print of the command line goes through here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
from typing import Any, Final, TextIO

from gemmaspec.errors import GemmaspecError
from gemmaspec.redact import redact

_CONTROLS: Final = re.compile("[\x7f-\x9f]")
"""Control characters that JSON lets stand."""

_COLUMN: Final = re.compile(r"\s*\S(?:.*?\S)??\s{2,}(?=\S)")
"""A line's first column, and the two blanks or more that end it."""


def data(text: str) -> None:
    """Print what the command was asked for, as it is."""
    text = redact(text)
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def told(text: str) -> None:
    """Print sentences for a person: on a terminal, lines that are too long go on below, indented."""
    data(fitted(text, width_of(sys.stdout)))


def width_of(stream: TextIO) -> int | None:
    """Return how many columns there are: those of $COLUMNS or the terminal; None for a pipe or a file."""
    if (asked := os.environ.get("COLUMNS", "")).isdigit() and int(asked) > 0:
        return int(asked)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def fitted(text: str, width: int | None) -> str:
    """Return `text` with long lines broken at blanks, never inside a word or a path.

    What goes on is indented to the line's second column if it has one (two blanks before it), else by two more.
    """
    if width is None:
        return text
    return "\n".join(_fitted(line, width) for line in text.split("\n"))


def _fitted(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    column = _COLUMN.match(line)
    indent = min(len(column[0]) if column else len(line) - len(line.lstrip()) + 2, width // 2)
    head = line[:indent] if column and len(column[0]) == indent else ""
    rest = line[len(head) :]
    parts = textwrap.wrap(
        rest.strip(),
        width,
        initial_indent=head or line[: len(line) - len(line.lstrip())],
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return "\n".join(parts)


def json_data(value: dict[str, Any]) -> None:
    """The same for machines; every document says its schema. What a terminal would obey is written as an escape."""
    text = json.dumps({"schema": 1, **value}, indent=2, ensure_ascii=False)
    data(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def progress(text: str) -> None:
    """Tell what is going on meanwhile. Nobody has to hear it: a reader that left, or a full disk, ends no command."""
    try:
        sys.stderr.write(fitted(redact(text), width_of(sys.stderr)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        _let_go(sys.stderr)


def failure(error: GemmaspecError, *, as_json: bool) -> int:
    """Tell an expected failure and return its exit code."""
    if as_json:
        kind = type(error).__name__
        with contextlib.suppress(GemmaspecError, BrokenPipeError):
            json_data({"ok": False, "error": {"kind": kind, "message": error.message, "hint": error.hint}})
    progress(_red("error: ") + error.message)
    if error.hint:
        progress(f"  try: {error.hint}")
    return error.exit_code


def usage(error: Any, *, as_json: bool) -> int:
    """A command line that the parser refused, told in its own words."""
    if as_json:
        message = error.format_message()
        json_data({"ok": False, "error": {"kind": "UsageError", "message": message, "hint": None}})
    error.show(sys.stderr)
    return int(error.exit_code)


def broken_pipe() -> int:
    """The reader of stdout left, as `| head` does: nothing more can be said there."""
    _let_go(sys.stdout)
    return 1


def unwritten(error: OSError) -> GemmaspecError:
    """The error for standard output on a full disk."""
    _let_go(sys.stdout)
    return GemmaspecError(f"cannot write standard output: {error.strerror}")


def _let_go(stream: TextIO) -> None:
    """Send what is still to come nowhere, so that Python does not fail over it again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m" if colours() else text


def colours() -> bool:
    """Whether stderr is a terminal that wants colours."""
    return wants_colour(sys.stderr)


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
