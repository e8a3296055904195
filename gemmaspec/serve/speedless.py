"""Patches for speed that may be why a start has failed, or why a server goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.ready.failures import find_cause
from gemmaspec.run.ready.known_failures import ENVIRONMENT
from gemmaspec.run.ready.logline import message_of

OFF: Final = "patches.speed=off"
_LINES: Final = 4000
_APPLIED: Final = re.compile(r"gemmaspec: patch (?P<patch>[a-z0-9-]{1,80}): applies\b")
_FRAME: Final = re.compile(r'  File "[^"]{0,400}?(?P<path>vllm/[^"]{1,300}\.py)", line \d')
_OF_KERNELS: Final = re.compile(
    r"CUDA error|illegal memory|device-side assert|misaligned|triton|kernel|shared memory", re.IGNORECASE
)
"""What an error says that a changed kernel can cause, wherever it is raised: kernels run later than they are called."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """The patches for speed of a start that failed."""

    patches: tuple[str, ...]
    named: tuple[str, ...]
    """Those whose code is in a traceback of the log."""

    def __str__(self) -> str:
        if self.named:
            return f"its log has a traceback through code of {', '.join(self.named)}"
        names = ", ".join(self.patches)
        return f"{names} {'was' if len(self.patches) == 1 else 'were'} in, and may be the cause"


def speed_files(plan: str) -> dict[str, frozenset[str]]:
    """Return the patches for speed in the text of a plan.json, each with the files that it changes."""
    try:
        files: dict[str, frozenset[str]] = {}
        for row in json.loads(plan)["patches"]:
            if row.get("purpose") == "speed":
                paths = (str(file["path"]) for variant in row["variants"] for file in variant["files"])
                files[str(row["id"])] = frozenset(paths)
        return files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def suspicion(files: Mapping[str, str], lines: Sequence[str], error: GemmaspecError) -> Suspicion | None:
    """Return the patches for speed that may be why a start failed; None if there are none, or something else is.

    `files` are the stack's, `lines` its log; without a log, every patch of the plan counts as applied.
    """
    planned = speed_files(files.get("plan.json", ""))
    if not planned or not isinstance(error, StartFailed) or error.exit_code == ENVIRONMENT:
        return None
    messages = [message_of(line) for line in lines]
    applied = {match["patch"] for text in messages if (match := _APPLIED.match(text))}
    inside = tuple(name for name in planned if name in applied or not lines)
    if not inside:
        return None
    seen = {match["path"] for text in messages if (match := _FRAME.match(text))}
    named = tuple(name for name in inside if planned[name] & seen)
    cause = find_cause(lines)
    if not named and cause and not cause.failure.general and not _OF_KERNELS.search(cause.message):
        return None
    return Suspicion(patches=inside, named=named)


def log_of(engine: Engine, server: Server) -> list[str]:
    """Return the end of a server's log; nothing if it cannot be read."""
    try:
        return list(engine.logs(server, tail=_LINES))
    except (GemmaspecError, OSError):
        return []


def in_report(report: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the patches for speed that a running server has."""
    rows = report.get("patches") if report else None
    speed = [row for row in rows or () if isinstance(row, dict) and row.get("purpose") == "speed"]
    return tuple(sorted(str(row.get("patch")) for row in speed if row.get("state") in ("applies", "applied")))
