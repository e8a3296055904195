"""What to do about a fault: what the profile says, limited by how often it was done recently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.core.live.faults import Event, FaultKind

HOUR_S: Final = 3600.0
Action = Literal["report", "off", "restart"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a profile allows `watch` to do; see `watch:` in the profile."""

    on_dead_draft: Action = "report"
    on_slower: Action = "report"
    on_hang: Action = "report"
    on_exit: Action = "report"
    most_restarts_per_hour: int = 2


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """What to do, and why not more."""

    action: Action
    note: str = ""


def reaction(event: Event, policy: Policy, *, restarts: Sequence[float], now: float) -> Reaction:
    """Return what to do about an event. `restarts` are the times, in seconds, of those that `watch` has done."""
    if not event.begins:
        return Reaction(action="report")
    wished = _wish(event.kind, policy)
    lately = sum(abs(now - restart) < HOUR_S for restart in restarts)
    if wished == "report" or lately < policy.most_restarts_per_hour:
        return Reaction(action=wished)
    return Reaction(action="report", note=f"not restarted: the limit of {lately} restarts per hour is reached")


def _wish(kind: FaultKind, policy: Policy) -> Action:
    wishes: dict[FaultKind, Action] = {
        FaultKind.DEAD_DRAFT: policy.on_dead_draft,
        FaultKind.SLOWER: policy.on_slower,
        FaultKind.HANGS: policy.on_hang,
        FaultKind.GONE: policy.on_exit,
    }
    return wishes.get(kind, "report")


def drains(kind: FaultKind) -> bool:
    """Return whether running requests are worth waiting for before a restart: those of a hung server never end."""
    return kind not in (FaultKind.HANGS, FaultKind.GONE)
