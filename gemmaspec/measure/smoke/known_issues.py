"""Known issues of vLLM, by the check that shows them.

Numbers are those of github.com/vllm-project/vllm, issues and pull requests; states as seen on 2026-11-22.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """One issue."""

    number: int
    title: str
    state: str
    """open, closed or merged."""
    seen_in: str | None = None
    """The release that the report names; None where it names none."""
    fixed_in: str | None = None
    """The first release with the fix; None where there is none, or none is known."""
    source: str = ""
    """Where the release comes from, if not from the issue itself."""

    @property
    def url(self) -> str:
        """The issue's address; GitHub leads on from there if it is a pull request."""
        return f"https://github.com/vllm-project/vllm/issues/{self.number}"

    def line(self, running: str | None) -> str:
        """Return the issue in one line, with what it means for the vLLM that runs."""
        if self.seen_in:
            seen = f", seen in {self.seen_in}"
        else:
            seen = ""
        if not self.fixed_in:
            return f"vllm #{self.number} ({self.state}{seen}): {self.title}; no release with a fix is known"
        fixed = f"fixed in {self.fixed_in}"
        if running and (here := _before(running, self.fixed_in)) is not None:
            fixed += f", {running} runs" if here else f"; {running} has the fix, so this may be another bug"
        return f"vllm #{self.number} ({self.state}{seen}): {self.title}; {fixed}"

    def document(self) -> dict[str, Any]:
        """Return the issue for machines."""
        return {
            "number": self.number,
            "url": self.url,
            "title": self.title,
            "state": self.state,
            "seen_in": self.seen_in,
            "fixed_in": self.fixed_in,
            "source": self.source or self.url,
        }


def _before(running: str, fixed: str) -> bool | None:
    try:
        return Version(running) < Version(fixed)
    except InvalidVersion:
        return None


_ROWS: Final = json.loads(Path(__file__).with_name("known_issues.json").read_text(encoding="utf-8"))


def _known(rows: Sequence[Mapping[str, Any]]) -> tuple[KnownIssue, ...]:
    return tuple(KnownIssue(**row) for row in rows)


KNOWN: Final[Mapping[str, tuple[KnownIssue, ...]]] = {check: _known(rows) for check, rows in _ROWS.items()}
"""S14, S15 and S16 show settings, not issues."""
