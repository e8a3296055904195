"""Rows and the verdict: what a run of the checks came to, for people, machines and the state folder."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.smoke.check import Check, Word
from gemmaspec.smoke.known_issues import KNOWN, Known

LONGEST_BODY: Final = 1500
"""Longest request, in bytes, that the curl command itself contains; a longer one is in a file next to it."""
WORDS: Final[tuple[Word, ...]] = ("pass", "fail", "skipped", "unknown")


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
    def known(self) -> tuple[Known, ...]:
        """The issues that it may be, of a row that failed."""
        return KNOWN.get(self.id, ()) if self.word == "fail" else ()

    def document(self) -> dict[str, Any]:
        """Return the row for machines."""
        return {**dataclasses.asdict(self), "known": [one.document() for one in self.known]}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a whole run came to: what is kept, and shown by `status` and `wait`."""

    at: float
    """Seconds since 1970."""
    since: float | None
    """The start of the server that was asked, in seconds since 1970."""
    vllm: str | None
    counts: Mapping[str, int]
    """Checks by word; a warning is not among the failed."""
    failed: tuple[str, ...] = ()
    """Ids of the checks that failed the run."""
    warned: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the verdict in a few words: `16 of 16 passed`."""
        asked = sum(self.counts.get(word, 0) for word in WORDS if word != "skipped") + len(self.warned)
        parts = [f"{self.counts.get('pass', 0)} of {asked} passed"]
        if self.failed:
            parts.append(f"{', '.join(self.failed)} failed")
        if self.warned:
            parts.append(f"{', '.join(self.warned)} warned")
        if self.counts.get("unknown"):
            parts.append(f"{self.counts['unknown']} unknown")
        return ", ".join(parts)


def verdict_of(rows: Sequence[SmokeRow], *, at: float, since: float | None, vllm: str | None) -> Verdict:
    """Return what rows come to."""
    warned = [one for one in rows if one.word == "fail" and not one.counts]
    plain = [one for one in rows if one not in warned]
    return Verdict(
        at=at,
        since=since,
        vllm=vllm,
        counts={word: sum(one.word == word for one in plain) for word in WORDS},
        failed=tuple(one.id for one in plain if one.word == "fail"),
        warned=tuple(one.id for one in warned),
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
    return check.fix if word == "fail" else None
