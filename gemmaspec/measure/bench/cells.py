"""Arms and cells: what is measured, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.model import Profile

NONE: Final = "none"
"""The method of an arm without speculation."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One configuration of the server to measure, which takes a start of its own."""

    method: str
    k: int
    """Drafted tokens, of a table the largest; 0 without speculation."""
    overrides: tuple[str, ...] = ()
    """Overrides of the profile for it."""
    knob: str = ""
    """Another setting of this arm, in words: empty if only method and k differ."""
    patches: str = ""
    """The patches for speed by --speed-patches: `speed` …; empty for what the profile takes."""
    table: tuple[tuple[int, int], ...] = ()
    """Where k follows the load: pairs of a number of requests at once and the k from that number on."""
    profile: str = ""
    """The profile that is started, where a run compares several."""
    required: int = 0
    """Patches of vLLM that the profile requires."""
    memory: int = 0
    """Bytes of the draft's weights; 0 without a draft, or where they are not known."""

    @property
    def name(self) -> str:
        """Return its name in a result: METHOD/K, and what else is set."""
        parts = [self.method, str(self.k)]
        if self.knob:
            parts.append(self.knob)
        if self.patches:
            parts.append(f"patches {self.patches}")
        return "/".join(parts)

    @property
    def key(self) -> str:
        """Return the name by which a resumed run of several profiles finds it."""
        return f"{self.profile}/{self.name}"

    @property
    def alone(self) -> bool:
        """Whether the target runs without speculation."""
        return self.method == NONE

    @property
    def family(self) -> tuple[str, str, str]:
        """What arms share that differ in k alone."""
        return self.profile, self.method, self.knob

    def following(self, table: Mapping[int, int]) -> Arm:
        """Return the same arm with a k that follows the number of requests."""
        shown = ", ".join(f"{start}: {k}" for start, k in sorted(table.items()))
        return replace(self, knob=f"k_by_requests {{{shown}}}", table=tuple(sorted(table.items())))

    def at(self, requests: int) -> int:
        """Return the k with so many requests at once."""
        for start, k in reversed(self.table):
            if start <= requests:
                return k
        return self.k

    @property
    def said(self) -> str:
        """Return it in words, without its profile."""
        if self.patches:
            patches = f"patches {self.patches}"
        else:
            patches = ""
        if self.alone:
            drafts = "no speculation"
        else:
            drafts = f"{self.method} k={self.k}"
        return ", ".join(part for part in (drafts, self.knob, patches) if part)

    def __str__(self) -> str:
        if self.profile and not self.alone:
            return f"{self.profile}: {self.said}"
        return self.said


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination that is measured on a running server."""

    concurrency: int
    context: int | None = None
    """Prompt tokens; None for the prompts' own lengths."""

    def __str__(self) -> str:
        if self.context is None:
            context = ""
        else:
            context = f", {self.context:,} prompt tokens"
        return f"{self.concurrency} concurrent{context}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell of one arm in one round."""

    arm: Arm
    cell: Cell
    round: int

    @property
    def k(self) -> int:
        """Drafted tokens of the cell's load."""
        return self.arm.at(self.cell.concurrency)

    @property
    def key(self) -> str:
        """Return the name by which a resumed run finds it."""
        return f"{self.arm.name}/{self.cell.concurrency}/{self.cell.context or 0}/{self.round}"


def cells_of(concurrencies: Sequence[int], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """Return every cell of one arm."""
    pairs = itertools.product(contexts or (None,), concurrencies)
    return tuple(Cell(concurrency=concurrency, context=context) for context, concurrency in pairs)


def order(arms: Sequence[Arm], cells: Sequence[Cell], *, rounds: int) -> tuple[Task, ...]:
    """Return every task. Each round reverses the order of the one before, so that drift of the machine favours no arm.

    The last arm of a round is the first of the next, which saves a start.
    """
    tasks: list[Task] = []
    for number in range(1, rounds + 1):
        pairs = itertools.product(arms, cells)
        tasks_of_round = [Task(arm=arm, cell=cell, round=number) for arm, cell in pairs]
        tasks += tasks_of_round if number % 2 else reversed(tasks_of_round)
    return tuple(tasks)


NO_TABLE: Final = "speculative.k_by_requests="
"""The override that leaves one k for every load."""


def arms_of(profile: Profile, ks: tuple[int, ...]) -> tuple[Arm, ...]:
    """Return the arms of a profile: without speculation for k 0, with its method for each other k.

    `ks` defaults to 0 and the profile's own, which follows the load where the profile has a table. Raises UsageError
    for a k that the profile cannot use.
    """
    spec = profile.speculative
    if not spec:
        if any(ks):
            raise UsageError(f"{profile.name} does not speculate, so its only k is 0")
        return (Arm(method=NONE, k=0),)
    own = spec.num_speculative_tokens or 0
    arms = []
    for k in ks or (0, own):
        if k == 0:
            arms.append(Arm(method=NONE, k=0))
        elif k == own and spec.k_by_requests:
            arms.append(Arm(method=spec.method, k=own).following(spec.k_by_requests))
        else:
            arms.append(arm_of(profile, k))
    return tuple(arms)


def arm_of(profile: Profile, k: int) -> Arm:
    """Return the arm of a profile's method with one number of drafted tokens for every load.

    Raises UsageError where its acceptance is drawn by lot for fewer positions.
    """
    spec = profile.speculative
    assert spec
    overrides = [NO_TABLE] if spec.k_by_requests else []
    if k == spec.num_speculative_tokens:
        return Arm(method=spec.method, k=k, overrides=tuple(overrides))
    overrides.append(f"speculative.num_speculative_tokens={k}")
    if rates := spec.synthetic_acceptance_rates:
        if len(rates) < k:
            raise UsageError(
                f"--k {k}: speculative.synthetic_acceptance_rates has {len(rates)} rates, but {k} are needed"
            )
        shown = ", ".join(f"{rate:g}" for rate in rates[:k])
        overrides.append(f"speculative.synthetic_acceptance_rates=[{shown}]")
    return Arm(method=spec.method, k=k, overrides=tuple(overrides))
