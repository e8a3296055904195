"""The known ways in which servers fail to start: the table of failures.py.

Rows are in failures.yaml. Bugs of vLLM that have a patch are described in their patch folders and read from there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.bugs import Bug, bugs

ENVIRONMENT: Final = 4
START: Final = 6
TABLE: Final = Path(__file__).with_name("failures.yaml")


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """One kind of failure: its message in the log, its cause and its fix."""

    pattern: re.Pattern[str]
    """Matches anywhere in a message of the log."""
    finding: Finding
    """What happened, the fix, with the profile's key or the patch, and the patch for a bug of vLLM."""
    exit_code: int = START
    """6 for a failed start, 4 if something outside the stack is missing."""
    general: bool = False
    """Whether a failure without this mark, anywhere in the log, is more specific."""
    said: tuple[str, ...] = ()
    """Lines that it is known by."""


@functools.cache
def table() -> tuple[KnownFailure, ...]:
    """Return every failure that the log identifies, except bugs that have a patch. Raises KeyError for a wrong row."""
    return tuple(map(_row, strict_yaml.table(TABLE)))


def _row(row: Mapping[str, Any]) -> KnownFailure:
    finding = Finding(code=row["id"], severity="error", message=row["cause"], fix=row["fix"])
    return KnownFailure(
        pattern=re.compile(row["text"]),
        finding=finding,
        exit_code=row.get("exit", START),
        general=row.get("general", False),
        said=(*row.get("said", ()), *row.get("like", ())),
    )


KILLED: Final = KnownFailure(
    pattern=re.compile(r"(?!)"),  # a killed process prints nothing
    finding=Finding(
        code="killed",
        severity="error",
        message="It was killed from outside (SIGKILL), usually because the machine ran out of memory.",
        fix="Lower serve.gpu_memory_utilization or serve.max_model_len, or free memory on the machine.",
    ),
)


def _of_bug(bug: Bug, fix: str) -> Finding:
    return Finding(code=bug.patch, severity="error", message=bug.symptom, fix=fix, patches=(bug.patch,))


def known_failures(version: str | None = None) -> tuple[KnownFailure, ...]:
    """Return the bugs of vLLM that have a patch, then those of the table.

    `version` is the vLLM that ran, if known: a bug counts only with advice for that release.
    """
    rows = []
    for bug in bugs():
        fix = bug.fix(version)
        if bug.errors and fix:
            rows.append(KnownFailure(pattern=bug.pattern(), finding=_of_bug(bug, fix)))
    return (*rows, *table())
