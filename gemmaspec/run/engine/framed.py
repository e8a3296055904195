"""Several files in the output of one command: how they are asked for, and told apart again.

A daemon that is asked for each file alone takes as many answers as there are files. Between the files stands a mark
that no file can know, so that none can pass as another.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_SCRIPT: Final = """\
mark=$1 most=$2
shift 2
printf '%s\\n' "$mark"
for file do
    head -c "$most" -- "$file" 2>/dev/null
    printf '\\n%s %s\\n' "$mark" $?
done
"""
"""For any POSIX shell. Unlike `cat`, `head -c` ends even if the file does not."""


@dataclass(frozen=True)
class Framed:
    """One question for several files."""

    paths: Sequence[str]
    most: int
    """Bytes of each file that are read."""
    mark: str

    @property
    def command(self) -> list[str]:
        """The command that prints them, where the files are."""
        return ["sh", "-c", _SCRIPT, "sh", self.mark, str(self.most), *self.paths]

    def contents(self, output: bytes) -> Mapping[str, bytes] | None:
        """Return the files by path, without those that are missing; None if a part of the output was lost."""
        first, between = f"{self.mark}\n".encode(), f"\n{self.mark} ".encode()
        pieces = output.removeprefix(first).split(between)
        if not output.startswith(first) or len(pieces) != len(self.paths) + 1:
            return None
        found: dict[str, bytes] = {}
        content = pieces[0]
        for path, piece in zip(self.paths, pieces[1:], strict=True):
            code, newline, rest = piece.partition(b"\n")
            if not newline:
                return None
            if code == b"0":
                found[path] = content
            content = rest
        return found


def framed(paths: Sequence[str], *, most: int) -> Framed:
    """Return the question for files, `most` bytes of each."""
    return Framed(paths, most, secrets.token_hex(16))
