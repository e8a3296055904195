"""Turn bytes of a server's output into lines that are safe to print, because logs are hostile input."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from typing import Final

MAX_LINE: Final = 64 * 1024
"""Maximum characters of a line; longer ones are split, so that they cannot fill the memory."""

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement, screen clearing
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one C1 character
)
# Controls except tab, and the characters that reorder or hide text on a terminal.
_CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Return `text` without terminal escapes and control characters, except tabs."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield clean lines of a byte stream that may be split anywhere, even inside a character.

    Invalid UTF-8 becomes U+FFFD. A lone carriage return ends a line too, so that each step of a progress bar is a line.
    An incomplete last line comes at the end of the stream.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from map(clean, whole)
        if len(rest) > MAX_LINE:
            yield clean(rest)
            rest = ""
    rest += decoder.decode(b"", final=True)
    if rest.strip("\n"):
        yield clean(rest.strip("\n"))


def host_line(host: str, line: str) -> str:
    """Return a line of a rank's log after its host's name."""
    return f"{host} | {line}"


def split_host(line: str) -> tuple[str, str]:
    """Return the host and the line that `host_line` joined."""
    host, _, text = line.partition(" | ")
    return host, text
