"""`status`: what runs, with which patches, and how well it drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmaspec.deploy import stacks
from gemmaspec.deploy.stacks import Started
from gemmaspec.engine.server import State
from gemmaspec.errors import GemmaspecError
from gemmaspec.files import UnreadableFile
from gemmaspec.ready.counters import SpecCounters
from gemmaspec.ready.probe import api_key_for, read_counters
from gemmaspec.trees.provenance import Finding, compare


@dataclass(frozen=True, kw_only=True)
class Status:
    """One stack, looked at from outside."""

    started: Started
    state: State
    report: dict[str, Any] | None = None
    counters: SpecCounters | None = None
    """What the server has drafted since its start; None when it does not answer."""
    findings: tuple[Finding, ...] = ()
    """Files that are not as they were when it started."""

    damaged: bool = False
    """Its record cannot be read: `started` holds its name and folder alone."""
    problem: str = ""
    """Why the launcher's report cannot be read."""

    @property
    def running(self) -> bool:
        """Whether the server's process or container is there."""
        return self.state.status == "running"


def status(name: str | None) -> list[Status]:
    """Return the status of one stack, or of all; what is broken in one of them hides no other.

    Raises UsageError when nothing of that name was started here.
    """
    if name and name not in stacks.names_of_stacks():
        stacks.find(name)
    return [_of(one) for one in ([name] if name else stacks.names_of_stacks())]


def _of(name: str) -> Status:
    try:
        return _look(stacks.find(name))
    except UnreadableFile as error:
        rescued = stacks.rescue(name)
        state = stacks.look(rescued)
        detail = f"{error.message}; {state.status}{f': {state.detail}' if state.detail else ''}"
        return Status(
            started=rescued, state=State(status="unknown", detail=detail, hint=f"gemmaspec down {name}"), damaged=True
        )


def _look(started: Started) -> Status:
    engine = stacks.engine_of(started)
    state = stacks.look(started, engine)
    if state.status != "running":
        return Status(started=started, state=state)
    try:
        report = engine.report(started.server)
        findings = compare(started.server, engine, report) if report else ()
    except GemmaspecError as error:
        return Status(started=started, state=state, counters=_counters(started), problem=error.message)
    return Status(started=started, state=state, report=report, counters=_counters(started), findings=findings)


def _counters(started: Started) -> SpecCounters | None:
    try:
        return read_counters(started.server, timeout_s=3, api_key=api_key_for(started.server))
    except GemmaspecError:
        return None
