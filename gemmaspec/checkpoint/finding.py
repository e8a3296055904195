"""Something worth knowing about a checkpoint or a pair, with what it will cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "patch", "note"]
"""error: it cannot work. warning: it works badly, or may not. patch: it works with what `mend` names. note: know it."""


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
    """What to do: patch ids, profile keys, another checkpoint."""
