"""Facts that changed since they were locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmaspec.lock.document import NONE


@dataclass(frozen=True)
class Moved:
    """One fact, as locked and as it is now."""

    what: str
    """Its name in the lock: image.digest, draft.revision, plan …"""
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: was {self.was}, is {self.now}"


def moved(locked: Mapping[str, str], now: Mapping[str, str], *, among: Sequence[str] = ()) -> tuple[Moved, ...]:
    """Return the facts that differ (named as in Lock.facts()), in the lock's order.

    A fact that `now` lacks is unknown and not compared. `among` names facts that count as `none` if `now` lacks them,
    so
    that a removed fact is reported.
    """
    names = [*locked, *(name for name in now if name not in locked)]
    known = {**dict.fromkeys(among, NONE), **now}
    return tuple(
        Moved(name, locked.get(name, NONE), known[name])
        for name in names
        if name in known and known[name] != locked.get(name, NONE)
    )
