"""Known issues of vLLM, by the check that shows them.

Numbers are those of github.com/vllm-project/vllm, issues and pull requests; states as seen on 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True, kw_only=True)
class Known:
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
        seen = f", seen in {self.seen_in}" if self.seen_in else ""
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


_ENGINE_PARSER: Final = "vllm/parser/gemma4.py, there from 0.24.0 on"
_TRIM: Final = "trim_reasoning_for_advance: missing in 0.24.0, there in 0.26.0; 0.25.0 was not read"

KNOWN: Final[Mapping[str, tuple[Known, ...]]] = {
    "S1": (
        Known(number=38855, title="the thought stays in an answer that is not streamed", state="closed",
              seen_in="0.19.0", fixed_in="0.19.1", source="pull request 39027; the wheels of 0.19.0 and 0.19.1"),
    ),
    "S2": (
        Known(number=39885, title="thoughts are streamed as content after a tool's result", state="open"),
    ),
    "S3": (
        Known(number=48262, title="an answer without a thought is streamed as reasoning alone", state="merged"),
        Known(number=49717, title="content empty, reasoning holds the whole streamed answer", state="open"),
    ),
    "S4": (
        Known(number=57231, title="a tool parser without a reasoning parser leaks <|channel>", state="open"),
    ),
    "S5": (
        Known(number=50938, title="text in front of the thought leaks before the JSON", state="open"),
    ),
    "S6": (
        Known(number=42635, title="a thought that is cut off gives a content of null", state="closed"),
    ),
    "S7": (
        Known(number=41967, title="MTP drops the arguments of the first of two streamed tool calls", state="closed",
              seen_in="0.20 to 0.23", fixed_in="0.24.0", source=f"pull request 45588; {_ENGINE_PARSER}"),
        Known(number=42696, title="streamed tool calls without id or name", state="closed",
              fixed_in="0.24.0", source=_ENGINE_PARSER),
    ),
    "S8": (
        Known(number=42781, title="speculation cuts streamed reasoning short", state="closed", seen_in="0.21.0"),
    ),
    "S9": (
        Known(number=44993, title="JSON under a schema breaks under speculation, many requests at once",
              state="merged", seen_in="0.24.0", fixed_in="0.26.0", source=_TRIM),
        Known(number=46118, title="JSON and MTP", state="open"),
    ),
    "S10": (
        Known(number=40080, title="repetition under a JSON schema", state="open"),
        Known(number=54881, title="reasoning skipped and JSON repeated under a schema", state="closed",
              seen_in="0.26.1rc1.dev1133"),
        Known(number=55313, title="blanks without end under DSpark, with HTTP 200", state="open"),
    ),
    "S11": (
        Known(number=39407, title="garbage from an FP8 block checkpoint; closed as stale", state="closed",
              seen_in="0.19.1rc1.dev216"),
    ),
    "S12": (
        Known(number=43559, title="worse answers with the prefix cache and MTP, for models with Mamba layers (Qwen3.6)",
              state="closed", fixed_in="0.26.0", source="a comment of 2026-07-26 in the issue; not read in the code"),
    ),
    "S13": (
        Known(number=42005, title="a request with an image stops the engine if a draft model runs", state="closed"),
        Known(number=35714, title="draft models for targets that take images", state="closed"),
    ),
    "S17": (
        Known(number=41758, title="greedy texts differ under ngram (Qwen3-0.6B); closed as stale", state="closed",
              seen_in="0.20.1"),
    ),
    "S18": (
        Known(number=41789, title="0.2 % of drafted tokens accepted", state="open", seen_in="0.20.2rc1.dev49"),
        Known(number=52479, title="acceptance 0 after a wake from sleep level 2", state="open"),
    ),
}  # fmt: skip
"""S14, S15 and S16 show settings, not issues."""
