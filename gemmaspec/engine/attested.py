"""What the processes of a server attest of their patched functions, as data; launcher/attest.py is the other side.

The sum is a file that anything in the server could have written, so it is hostile input. What is missing is never fine:
a server with patches and without a sum is not attested.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gemmaspec.engine.lines import clean

FILE: Final = "attested.json"
"""In the run folder, next to the launcher's report."""
MAX_ATTESTED: Final = 4 * 1024 * 1024
"""Maximum bytes of the sum."""

State = Literal["attested", "different", "not attested"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of the server, and what it says of the patched functions in it."""

    pid: int
    title: str
    checked: float
    """When it looked last, by the clock of the server's machine since its boot, in seconds."""
    cost_ms: float
    """CPU time that all its looks took."""
    functions: tuple[str, ...]
    """Modules and functions that are the patched ones."""
    different: tuple[str, ...] = ()
    """What is not, of required patches, and what was found."""
    optional: tuple[str, ...] = ()
    """The same, of optional patches."""
    wrapped: tuple[str, ...] = ()
    """Functions that are the patched ones within wrappers, with these."""

    @property
    def name(self) -> str:
        """The process for people."""
        return f"{self.title or 'a process'} (pid {self.pid})"


@dataclass(frozen=True, kw_only=True)
class Attested:
    """All processes of a server."""

    processes: tuple[Process, ...] = ()
    silent: tuple[str, ...] = ()
    """Processes of vLLM that say nothing."""
    missing: tuple[str, ...] = ()
    """Modules of required patches that no process has imported."""
    now: float = 0.0
    """When the sum was made, by the same clock as `Process.checked`."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it is not attested."""
        found = [f"{one.name}: {what}" for one in self.processes for what in one.different]
        found += [f"{one} says nothing" for one in self.silent]
        found += [f"{one}: imported by no process" for one in self.missing]
        return tuple(found) if self.processes else (*found, "no process has attested its patched functions")

    @property
    def state(self) -> State:
        """Whether every process runs the patched functions."""
        if any(one.different for one in self.processes):
            return "different"
        return "not attested" if self.silent or self.missing or not self.processes else "attested"

    @property
    def sentence(self) -> str:
        """The state in one line: attested: 4 functions in 3 processes."""
        if self.state == "attested":
            functions = len({name for one in self.processes for name in one.functions})
            processes = len(self.processes)
            return (
                f"attested: {functions} function{'s' if functions != 1 else ''}"
                f" in {processes} process{'es' if processes != 1 else ''}"
            )
        return f"NOT ATTESTED: {'; '.join(self.problems[:3])}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What else to know: functions of optional patches that are replaced, and wrappers."""
        found = [f"{one.name}: optional patch: {what}" for one in self.processes for what in one.optional]
        return tuple(dict.fromkeys([*found, *(what for one in self.processes for what in one.wrapped)]))


def parse_attested(text: bytes | None) -> Attested:
    """Return the sum; nothing attested where it is missing or invalid."""
    try:
        if text and len(text) <= MAX_ATTESTED:
            found = json.loads(text)
            if found["schema"] == 1:
                return Attested(
                    processes=tuple(map(_process, found["processes"])),
                    silent=tuple(f"{_text(one['title'])} (pid {int(one['pid'])})" for one in found["silent"]),
                    missing=tuple(map(_text, found["missing"])),
                    now=float(found["now"]),
                )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        pass
    return Attested()


def _process(found: Mapping[str, Any]) -> Process:
    rows = [(_name(row), row) for row in found["rows"]]
    wrong = [(f"{name}: {_text(row.get('found', ''))}", row) for name, row in rows if row["state"] == "different"]
    through = [(name, row["wrapped"]) for name, row in rows if row.get("wrapped")]
    return Process(
        pid=int(found["pid"]),
        title=_text(found["title"]),
        checked=float(found["checked"]),
        cost_ms=float(found["cost_ms"]),
        functions=tuple(name for name, row in rows if row["state"] == "attested"),
        different=tuple(what for what, row in wrong if row["required"] is not False),
        optional=tuple(what for what, row in wrong if row["required"] is False),
        wrapped=tuple(f"{name} is called through {', '.join(map(_text, by))}" for name, by in through),
    )


def _name(row: Mapping[str, Any]) -> str:
    return ".".join(part for part in (_text(row["module"]), _text(row["function"])) if part)


def _text(value: object) -> str:
    return clean(str(value))[:500]


def with_attested(report: dict[str, Any], text: bytes | None) -> dict[str, Any]:
    """Return a report with what the processes attest, if the launcher gave them something to attest."""
    if not isinstance(report.get("attestation"), dict):
        return report
    found = parse_attested(text)
    rows = [
        {"pid": one.pid, "title": one.title, "checked": one.checked, "cost_ms": one.cost_ms,
         "functions": list(one.functions), "different": [*one.different, *one.optional], "wrapped": list(one.wrapped)}
        for one in found.processes
    ]  # fmt: skip
    document = {"state": found.state, "text": found.sentence, "processes": rows, "problems": list(found.problems)}
    return {**report, "attested": {**document, "notes": list(found.notes), "now": found.now}}
