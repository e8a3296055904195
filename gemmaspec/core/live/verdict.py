"""What a run of smoke's checks came to: what is kept, and shown by `status`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Word = Literal["pass", "fail", "skipped", "unknown"]
WORDS: Final[tuple[Word, ...]] = ("pass", "fail", "skipped", "unknown")


@dataclass(frozen=True, kw_only=True)
class SmokeVerdict:
    """What a whole run came to: what is kept, and shown by `status`."""

    at: float
    """Seconds since 1970."""
    since: float | None
    """When the server started that was queried, in seconds since 1970."""
    vllm: str | None
    counts: Mapping[str, int]
    """Checks by word; a warning is not among the failed."""
    failed: tuple[str, ...] = ()
    """Ids of the checks that failed the run."""
    warned: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the verdict in a few words: `16 of 16 passed`."""
        words = [word for word in WORDS if word != "skipped"]
        asked = sum(self.counts.get(word, 0) for word in words) + len(self.warned)
        parts = [f"{self.counts.get('pass', 0)} of {asked} passed"]
        if self.failed:
            parts.append(f"{', '.join(self.failed)} failed")
        if self.warned:
            parts.append(f"{', '.join(self.warned)} warned")
        if self.counts.get("unknown"):
            parts.append(f"{self.counts['unknown']} unknown")
        return ", ".join(parts)
