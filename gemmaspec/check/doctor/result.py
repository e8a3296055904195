"""The result of one check of `doctor`, which may also be good, unlike a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "skipped"]
"""`failed`: it cannot start. `warning`: it may start nevertheless. `skipped`: not checked, with the reason."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    name: str
    state: State
    message: str
    fix: str | None = None
    """The command that fixes it."""


def ok(name: str, message: str) -> CheckResult:
    """Return the result of a check that found everything as it should be."""
    return CheckResult(name=name, state="ok", message=message)


def warning(name: str, message: str, fix: str | None = None) -> CheckResult:
    """Return the result of a check that does not prevent a start."""
    return CheckResult(name=name, state="warning", message=message, fix=fix)


def failed(name: str, message: str, fix: str | None) -> CheckResult:
    """Return the result of a check that prevents a start."""
    return CheckResult(name=name, state="failed", message=message, fix=fix)


def skipped(name: str, message: str) -> CheckResult:
    """Return the result of a check that was not made."""
    return CheckResult(name=name, state="skipped", message=message)
