"""A problem and what to do about it: what lint, inspect and a failed start's log yield."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.strict_yaml import Place

Severity = Literal["error", "warning", "patch", "note"]
"""error: it does not work, or answers wrongly. warning: it works, but not as written, or not on every release.
patch: it works with `patches`. note: worth knowing."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "patch", "note")
"""The worst first."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem; the code is stable, the sentences are for people."""

    code: str
    severity: Severity
    message: str
    """What is wrong, with the numbers."""
    impact: str = ""
    """What it does in vLLM, with vLLM's own words if there are any, and on which releases."""
    fix: str = ""
    """What to do: which key, file or command."""
    place: Place | None = None
    """Where it was written, for a problem of a profile."""
    key: str = ""
    """The profile's key to blame, with dots."""
    patches: tuple[str, ...] = ()
    """The patches that fix it."""


def impossible(findings: Iterable[Finding]) -> bool:
    """Return whether one of the findings is an error."""
    return any(finding.severity == "error" for finding in findings)
