"""What a row of the table of failures is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gemmaspec.finding import Finding

ENVIRONMENT: Final = 4
START: Final = 6


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """One kind of failure: its message in the log, its cause and its fix."""

    pattern: re.Pattern[str]
    """Matches anywhere in a message of the log."""
    finding: Finding
    """What happened, the fix, with the profile's key or the patch, and the patch for a bug of vLLM."""
    exit_code: int = START
    """6 for a failed start, 4 if something outside the stack is missing."""
    general: bool = False
    """Whether a failure without this mark, anywhere in the log, is more specific."""


def row(
    code: str,
    pattern: str,
    message: str,
    fix: str,
    *,
    exit_code: int = START,
    general: bool = False,
) -> KnownFailure:
    """Return a row; its message and fix are a sentence or two each, and its code is stable."""
    finding = Finding(code=code, severity="error", message=message, fix=fix)
    return KnownFailure(pattern=re.compile(pattern), finding=finding, exit_code=exit_code, general=general)
