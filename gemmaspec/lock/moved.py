"""What is not as it was locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmaspec.lock.model import NONE


@dataclass(frozen=True)
class Moved:
    """One fact, before and now."""

    what: str
    """Its name in the lock: image.digest, draft.revision, plan …"""
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: was {self.was}, is {self.now}"


def moved(locked: Mapping[str, str], now: Mapping[str, str], *, among: Sequence[str] = ()) -> tuple[Moved, ...]:
    """Return facts that differ (as Lock.facts() names them), in the lock's order.

    A fact that `now` does not have is not known and not compared. `among` names further facts that count as
    `none` when `now` lacks them, which is how something that is gone is seen.
    """
    names = [*locked, *(name for name in now if name not in locked)]
    known = {**dict.fromkeys(among, NONE), **now}
    return tuple(
        Moved(name, locked.get(name, NONE), known[name])
        for name in names
        if name in known and known[name] != locked.get(name, NONE)
    )
