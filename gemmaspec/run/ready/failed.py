"""A failed start as one error: what happened, why, and how to fix it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.errors import GemmaspecError, PatchConflict, StartFailed
from gemmaspec.run.engine.server import State
from gemmaspec.run.ready.failures import Cause, find_cause
from gemmaspec.run.ready.known_failures import ENVIRONMENT, KILLED, KnownFailure
from gemmaspec.run.ready.logline import message_of, printable
from gemmaspec.run.ready.phases import Phase
from gemmaspec.run.ready.tracebacks import Raised, described, root_exception

LAST_LINES: Final = 20
LAUNCHER: Final = "gemmaspec: "
NOT_ATTESTED: Final = f"{LAUNCHER}not attested: "
"""Begins the line of a process that ends a start because a patched function is another one (launcher/attest.py)."""
CONFLICT: Final = 5
"""Exit code of the launcher for a required patch that does not fit."""

STARTS_VLLM: Final = re.compile(r"gemmaspec: .*, starting vllm$")
_DOES_NOT_FIT: Final = re.compile(r"gemmaspec: .* does not fit vllm .*: vllm was not started$")
_SIGKILL: Final = (137, -9)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The last known state of a server whose start has failed."""

    name: str
    phase: Phase
    seconds: float
    """Seconds since the start."""
    state: State
    lines: Sequence[str]
    """Its log, oldest line first."""
    first_request: bool = False
    """Whether it was healthy and died during its first request."""


def failed_start(ended: Ended, *, secrets: Sequence[str] = ()) -> GemmaspecError:
    """Return the error for a server that died: PatchConflict if the launcher refused a patch, else StartFailed."""
    messages = [message_of(line) for line in ended.lines]
    launched = [text for text in messages if text.startswith(LAUNCHER)]
    if launched and not any(map(STARTS_VLLM.match, launched)):
        return _not_started(ended, launched, secrets=secrets)
    killed = ended.state.exit_code in _SIGKILL or ended.state.starved
    if not_attested := [text for text in launched if text.startswith(NOT_ATTESTED)]:
        return _replaced(ended, not_attested, secrets=secrets)
    return explained(_what(ended), ended.lines, secrets=secrets, otherwise=KILLED if killed else None)


def explained(
    what: str, lines: Sequence[str], *, secrets: Sequence[str] = (), otherwise: KnownFailure | None = None
) -> StartFailed:
    """Return the error with the first cause in the log, if any, and the last lines of the log."""
    cause = find_cause(lines)
    known = cause.failure if cause else otherwise
    parts = [what, *([known.finding.message] if known else [])]
    parts += [printable(text, secrets=secrets)[:400] for text in _first_cause(cause, root_exception(lines))]
    return StartFailed(
        "\n".join([*parts, *_quoted(lines, secrets=secrets)]),
        hint=known.finding.fix if known else None,
        exit_code=known.exit_code if known else None,
    )


def _first_cause(cause: Cause | None, root: Raised | None) -> list[str]:
    """Return the lines that quote the cause: the exception with its place, or else the known message."""
    if cause and not (root and cause.failure.pattern.search(root.text)):
        return [f"its log: {cause.message.strip()}"]
    if root is None:
        return []
    return [f"the first error in its log{f', in {root.process}' if root.process else ''}:"] + [
        f"  {line}" for line in described(root)
    ]


def _what(ended: Ended) -> str:
    how = _how(ended.state)
    if ended.first_request:
        return f"{ended.name} was healthy but died during its first request ({how})"
    return f"{ended.name} stopped while {ended.phase} after {ended.seconds:.0f} s ({how})"


def _how(state: State) -> str:
    words = {
        "absent": "it no longer exists",
        "running": "it restarted",
        "restarting": "it is restarting",
        "unknown": "its state is unknown",
    }
    how = words.get(state.status, "it exited")
    if state.exit_code is not None:
        code = f", exit code {state.exit_code}"
    else:
        code = ""
    return "; ".join(part for part in (f"{how}{code}", state.detail, state.starved) if part)


def _not_started(ended: Ended, lines: Sequence[str], *, secrets: Sequence[str]) -> GemmaspecError:
    """Return the error of a launcher that stopped before vLLM started, with its own lines as the reason."""
    shown = [printable(text.removeprefix(LAUNCHER), secrets=secrets) for text in lines]
    text = "\n  ".join([f"the launcher of {ended.name} did not start vLLM ({_how(ended.state)})", *shown])
    code = ended.state.exit_code
    if code == CONFLICT or (code is None and any(map(_DOES_NOT_FIT.match, lines))):
        return PatchConflict(text)
    if code in _SIGKILL:
        return StartFailed(f"{text}\n{KILLED.finding.message}", hint=KILLED.finding.fix)
    return StartFailed(text, exit_code=ENVIRONMENT if code == ENVIRONMENT else None)


def _replaced(ended: Ended, lines: Sequence[str], *, secrets: Sequence[str]) -> PatchConflict:
    """Return the error of a server whose own processes found a patched function replaced, and ended it."""
    shown = [printable(text.removeprefix(LAUNCHER), secrets=secrets) for text in dict.fromkeys(lines)]
    return PatchConflict(
        "\n  ".join([f"{ended.name} does not run the patched code ({_how(ended.state)})", *shown]),
        hint="remove the plugin or module that replaces it, or the patch from the profile",
    )


def _quoted(lines: Sequence[str], *, secrets: Sequence[str]) -> list[str]:
    shown = [printable(line, secrets=secrets) for line in lines[-3 * LAST_LINES :]]
    last = [text for text in shown if text.strip()]
    if last:
        return ["the last lines of its log:", *(f"  {text[:300]}" for text in last[-LAST_LINES:])]
    return []
