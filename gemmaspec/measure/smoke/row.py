"""Rows and the verdict: what a run of the checks came to, for people, machines and the state folder."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.live.verdict import WORDS, SmokeVerdict, Word
from gemmaspec.measure.smoke.check import Check
from gemmaspec.measure.smoke.known_issues import KNOWN, KnownIssue

LONGEST_BODY: Final = 1500
"""Longest request, in bytes, that the curl command itself contains; a longer one is in a file next to it."""


@dataclass(frozen=True, kw_only=True)
class SmokeRow:
    """One check of a run."""

    id: str
    name: str
    word: Word
    counts: bool
    """Whether a failure fails the run; otherwise it is a warning."""
    seen: str
    curl: str | None = None
    """The command that shows a failure; the key is the variable VLLM_API_KEY."""
    fix: str | None = None
    seconds: float | None = None

    @property
    def known(self) -> tuple[KnownIssue, ...]:
        """The issues that it may be, of a row that failed."""
        if self.word == "fail":
            return KNOWN.get(self.id, ())
        return ()

    def document(self) -> dict[str, Any]:
        """Return the row for machines."""
        return {**dataclasses.asdict(self), "known": [issue.document() for issue in self.known]}


def verdict_of(rows: Sequence[SmokeRow], *, at: float, since: float | None, vllm: str | None) -> SmokeVerdict:
    """Return what rows come to."""
    warned = [row for row in rows if row.word == "fail" and not row.counts]
    plain = [row for row in rows if row not in warned]
    counts: dict[str, int] = dict.fromkeys(WORDS, 0)
    for row in plain:
        counts[row.word] += 1
    return SmokeVerdict(
        at=at,
        since=since,
        vllm=vllm,
        counts=counts,
        failed=tuple(row.id for row in plain if row.word == "fail"),
        warned=tuple(row.id for row in warned),
    )


def body_text(body: Mapping[str, Any], *, model: str) -> str:
    """Return a request as it is sent."""
    return json.dumps({"model": model, **body}, ensure_ascii=False)


def curl(base_url: str, body: str, *, file: str | None, key: bool, streams: bool) -> str:
    """Return the command line that sends a request; `file` holds its body where that is long."""
    words = ["curl", *(["-N"] if streams else []), f"{base_url}/v1/chat/completions", "-H"]
    line = shlex.join([*words, "Content-Type: application/json"])
    if key:
        line += ' -H "Authorization: Bearer $VLLM_API_KEY"'
    return f"{line} -d {shlex.quote(f'@{file}' if file else body)}"


def fix_of(check: Check, word: Word) -> str | None:
    """Return what to do about a row."""
    if word == "fail":
        return check.fix
    return None
