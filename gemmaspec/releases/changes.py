"""What came and went between two vLLMs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmaspec.releases.table import Fact


@dataclass(frozen=True, kw_only=True)
class Change:
    """A fact that one vLLM has and the other has not."""

    kind: str
    """As the table calls it: flags, environment, speculative …"""
    name: str
    """With what lies below it: `--kv-cache-dtype choices fp8`."""
    came: bool

    def __str__(self) -> str:
        return f"{'+' if self.came else '-'} {self.kind} {self.name}"


def changes(before: frozenset[Fact], after: frozenset[Fact]) -> Iterator[Change]:
    """Sorted by name. What lies below a thing that came or went as a whole is not listed by itself."""
    for kind, *rest in sorted(before ^ after):
        fact = (kind, *rest)
        mine, other = (after, before) if fact in after else (before, after)
        if not any(fact[:length] in mine - other for length in range(2, len(fact))):
            yield Change(kind=kind, name=" ".join(rest), came=mine is after)
