"""Something worth knowing about a checkpoint or a pair, with what it will cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "patch", "note"]
"""error: it cannot work. warning: it works badly, or on some releases not at all. patch: it works with what `mend`
says. note: good to know."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding; the code is stable, the sentences are for people."""

    code: str
    severity: Severity
    says: str
    """What was found, with the numbers."""
    causes: str = ""
    """The effect in vLLM, with its own words where it has some, and the releases."""
    mend: str = ""
    """What to do: profile keys, another checkpoint."""
    patches: tuple[str, ...] = ()
    """Patches that close it."""


def impossible(findings: Iterable[Finding]) -> bool:
    """Whether one of them says that it cannot work."""
    return any(finding.severity == "error" for finding in findings)
