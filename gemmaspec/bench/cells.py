"""Arms and cells: what is measured, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NONE: Final = "none"
"""The method of an arm without speculation."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One configuration of the server to measure."""

    method: str
    k: int
    overrides: tuple[str, ...] = ()
    """Overrides of the profile for it."""
    knob: str = ""
    """Another setting of this arm, in words: empty if only method and k differ."""
    patches: str = ""
    """The patches for speed that were asked for: `speed` …; empty for what the profile takes."""

    @property
    def name(self) -> str:
        """Return its name in a result: METHOD/K, and what else is set."""
        patches = f"patches {self.patches}" if self.patches else ""
        return "/".join([self.method, str(self.k), *(one for one in (self.knob, patches) if one)])

    @property
    def no_spec(self) -> bool:
        """Whether the target runs alone."""
        return self.method == NONE

    def __str__(self) -> str:
        patches = f", patches {self.patches}" if self.patches else ""
        return ("no speculation" if self.no_spec else f"{self.method} k={self.k}") + patches


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination that is measured on a running server."""

    concurrency: int
    context: int | None = None
    """Prompt tokens; None for the prompts' own lengths."""

    def __str__(self) -> str:
        context = "" if self.context is None else f", {self.context:,} prompt tokens"
        return f"{self.concurrency} concurrent{context}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell of one arm in one round."""

    arm: Arm
    cell: Cell
    round: int

    @property
    def key(self) -> str:
        """Return the name by which a resumed run finds it."""
        return f"{self.arm.name}/{self.cell.concurrency}/{self.cell.context or 0}/{self.round}"


def cells_of(concurrencies: Sequence[int], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """Return every cell of one arm."""
    return tuple(
        Cell(concurrency=concurrency, context=context)
        for context in (contexts or (None,))
        for concurrency in concurrencies
    )


def order(arms: Sequence[Arm], cells: Sequence[Cell], *, rounds: int) -> tuple[Task, ...]:
    """Return every task. Each round reverses the order of the one before, so that drift of the machine favours no arm.

    The last arm of a round is the first of the next, which saves a start.
    """
    found: list[Task] = []
    for number in range(1, rounds + 1):
        one = [Task(arm=arm, cell=cell, round=number) for arm in arms for cell in cells]
        found += one if number % 2 else reversed(one)
    return tuple(found)
