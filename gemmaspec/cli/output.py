"""stdout is data, stderr is progress: every print of the command line goes through here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import Any, Final, TextIO

from gemmaspec.errors import GemmaspecError
from gemmaspec.redact import redact

_CONTROLS: Final = re.compile("[\x7f-\x9f]")
"""Control characters that JSON lets stand."""

hidden = redact
"""A text without this user's secrets."""


def data(text: str) -> None:
    """What the command was asked for."""
    text = hidden(text)
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def json_data(value: dict[str, Any]) -> None:
    """The same for machines; every document says its schema. What a terminal would obey is written as an escape."""
    text = json.dumps({"schema": 1, **value}, indent=2, ensure_ascii=False)
    data(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def progress(text: str) -> None:
    """What is going on meanwhile. Nobody has to hear it: a reader that left, or a full disk, ends no command."""
    try:
        sys.stderr.write(hidden(text) + "\n")
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
