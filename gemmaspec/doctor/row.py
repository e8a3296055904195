"""One line of a doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "skipped"]
"""`failed`: it could not start. `warning`: it may start, and something is worth knowing. `skipped` says why."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was looked at."""

    name: str
    state: State
    says: str
    do: str | None = None
    """The command that mends it."""


def ok(name: str, says: str) -> Row:
    """As it should be."""
    return Row(name=name, state="ok", says=says)


def warning(name: str, says: str, do: str | None = None) -> Row:
    """It may start."""
    return Row(name=name, state="warning", says=says, do=do)


def failed(name: str, says: str, do: str | None) -> Row:
    """It could not start."""
    return Row(name=name, state="failed", says=says, do=do)


def skipped(name: str, why: str) -> Row:
    """Not looked at."""
    return Row(name=name, state="skipped", says=why)
