"""Facts that were added or removed between two vLLM releases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmaspec.releases.table import Fact


@dataclass(frozen=True, kw_only=True)
class Change:
    """A fact that only one of two vLLM releases has."""

    kind: str
    """The table's name for it: flags, environment, speculative …"""
    name: str
    """Its name and the path below: `--kv-cache-dtype choices fp8`."""
    came: bool

    def __str__(self) -> str:
        return f"{'+' if self.came else '-'} {self.kind} {self.name}"


def changes(before: frozenset[Fact], after: frozenset[Fact]) -> Iterator[Change]:
    """Yield the changes, sorted by name; parts of a fact that was added or removed as a whole are not listed."""
    for kind, *rest in sorted(before ^ after):
        fact = (kind, *rest)
        mine, other = (after, before) if fact in after else (before, after)
        if not any(fact[:length] in mine - other for length in range(2, len(fact))):
            yield Change(kind=kind, name=" ".join(rest), came=mine is after)
