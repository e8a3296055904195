"""A problem and how to fix it, as found by lint, inspect and in the log of a failed start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from gemmaspec.core.strict_yaml import Place

Severity = Literal["error", "warning", "patch", "note"]
"""error: it does not work, or gives wrong answers. warning: it works, but not as configured, or not on every release.
patch: it works with `patches`. note: worth knowing."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "patch", "note")
"""The worst first."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem; the code is stable, the sentences are for people."""

    code: str
    severity: Severity
    message: str
    """The problem, with its numbers."""
    impact: str = ""
    """The effect in vLLM, with vLLM's own message if there is one, and the affected releases."""
    fix: str = ""
    """What to do: the key, file or command."""
    place: Place | None = None
    """The place in a profile."""
    key: str = ""
    """The profile's key that causes it, with dots."""
    patches: tuple[str, ...] = ()
    """The patches that fix it."""

    def document(self) -> dict[str, Any]:
        """Return it for machines."""
        place = {"file": self.place.file if self.place else "", "line": self.place.line if self.place else 0}
        fields = {name: value for name, value in asdict(self).items() if name != "place"}
        return {**fields, **place, "patches": list(self.patches)}


def impossible(findings: Iterable[Finding]) -> bool:
    """Return whether one of the findings is an error."""
    return any(finding.severity == "error" for finding in findings)
