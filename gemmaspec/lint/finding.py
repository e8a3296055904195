"""What a rule is, and what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.lint.subject import Subject

Severity = Literal["error", "warning", "note"]
"""error: it will not start, or answers wrongly. warning: it runs otherwise than written. note: worth knowing."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a rule yields: the key to blame, why in one sentence, and how to mend it in one."""

    path: Path
    why: str
    mend: str
    severity: Severity | None = None
    """Where it differs from the rule's own."""


Check = Callable[[Subject], Iterator[Found]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule; its code is stable and never given to another."""

    code: str
    severity: Severity
    check: Check
    any_release: bool = False
    """What it finds is so whatever vLLM runs."""


def rule(code: str, severity: Severity, *, any_release: bool = False) -> Callable[[Check], Rule]:
    """Make a rule of a check."""
    return lambda check: Rule(code=code, severity=severity, check=check, any_release=any_release)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding in one profile."""

    code: str
    severity: Severity
    file: str
    line: int
    """1-based; 0 for a value that came from the command line."""
    key: str
    why: str
    mend: str

    @property
    def place(self) -> str:
        """file:line."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def documentation(self) -> str:
        """Where the rule is explained."""
        return f"docs/reference/lint.md#{self.code.lower()}"

    def __str__(self) -> str:
        head = f"{self.place}: {self.severity} {self.code}: {self.key}: {self.why}"
        return f"{head}\n    {self.mend}  [{self.documentation}]"
