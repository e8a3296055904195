"""What one check of `doctor` found: also what is as it should be, which a finding never says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "skipped"]
"""`failed`: it could not start. `warning`: it may start, and something is worth knowing. `skipped` says why."""


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
