"""What to do about a fault: what the profile says, limited by how often it was done recently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.live.faults import Event, FaultKind

HOUR_S: Final = 3600.0
Action = Literal["report", "off", "restart"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a profile allows `watch` to do; see `watch:` in the profile."""

    on_dead_draft: Action = "report"
    on_hang: Action = "report"
    most_restarts_per_hour: int = 2


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """What to do, and why not more."""

    action: Action
    note: str = ""


def reaction(event: Event, policy: Policy, *, restarts: Sequence[float], now: float, live_k: bool = False) -> Reaction:
    """Return what to do about an event. `restarts` are the times, in seconds, of those that `watch` has done.

    With `live_k` speculation is switched off without a restart, and so without their bound.
    """
    if not event.begins:
        return Reaction(action="report")
    wished = _wish(event.kind, policy)
    lately = sum(now - one < HOUR_S for one in restarts)
    if wished == "report" or (wished == "off" and live_k) or lately < policy.most_restarts_per_hour:
        return Reaction(action=wished)
    return Reaction(action="report", note=f"not restarted: the limit of {lately} restarts per hour is reached")


def _wish(kind: FaultKind, policy: Policy) -> Action:
    if kind is FaultKind.DEAD_DRAFT:
        return policy.on_dead_draft
    return policy.on_hang if kind is FaultKind.HANGS else "report"
