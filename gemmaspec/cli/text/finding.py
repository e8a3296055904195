"""Findings as JSON. Each command keeps the names that its documents have always had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmaspec.finding import Finding


def of_profile(finding: Finding) -> dict[str, Any]:
    """Return a finding of a rule: `profile lint` and `patch release-day`."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "file": finding.place.file if finding.place else "",
        "line": finding.place.line if finding.place else 0,
        "key": finding.key,
        "why": finding.message,
        "mend": finding.fix,
    }


def of_checkpoint(finding: Finding) -> dict[str, Any]:
    """Return a finding about a checkpoint or a pair: `inspect`."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "says": finding.message,
        "causes": finding.impact,
        "mend": finding.fix,
        "patches": finding.patches,
    }
