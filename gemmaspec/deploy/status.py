"""`status`: what runs, with which patches, and how well it drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmaspec.deploy import stacks
from gemmaspec.deploy.stacks import Started
from gemmaspec.engine.server import State
from gemmaspec.errors import GemmaspecError
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

    @property
    def running(self) -> bool:
        """Whether the server's process or container is there."""
        return self.state.status == "running"


def status(name: str | None) -> list[Status]:
    """The status of one stack, or of all."""
    started = [stacks.find(name)] if name else stacks.started_stacks()
    return [_look(one) for one in started]


def _look(started: Started) -> Status:
    try:
        engine = stacks.engine_of(started)
        state = engine.state(started.server)
    except GemmaspecError as error:
        return Status(started=started, state=State(status="absent", detail=error.message))
    if state.status != "running":
        return Status(started=started, state=state)
    report = engine.report(started.server)
    return Status(
        started=started,
        state=state,
        report=report,
        counters=_counters(started),
        findings=compare(started.server, engine, report) if report else (),
    )


def _counters(started: Started) -> SpecCounters | None:
    try:
        return read_counters(started.server, timeout_s=3, api_key=api_key_for(started.server))
    except GemmaspecError:
        return None
