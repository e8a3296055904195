"""Which shipped profile fits which card, one of them and two: the table of README.md and docs/index.md.

Every cell is computed: `fit`'s memory plan and lint, for each card of that size that is known.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.check.lint.check import check
from gemmaspec.check.use_cases.cards import ON_A_SMALL_ONE, ON_ONE, ON_SEVERAL, ON_SMALL_ONES
from gemmaspec.check.use_cases.offer import ON_A_SPARK
from gemmaspec.check.use_cases.server_facts import plan_on, release_for
from gemmaspec.core import data
from gemmaspec.core.checkpoint.sizes import Size, size_called
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import ANY_GPU, MACHINES, counted_name, machine_kind
from gemmaspec.core.profile.replica import gpus_each

SPARK: Final = "dgx-spark"
_FIRST: Final = (ON_ONE, *ON_SEVERAL, *ON_A_SMALL_ONE, *ON_SMALL_ONES)
"""The order in which `up` offers them; other shipped profiles come after."""
NOTHING: Final = "none"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield memory, the cards that have it, what one serves, and what two in one machine serve; alike sizes once."""
    alike: dict[tuple[str, str], list[int]] = {}
    cards_of: dict[int, list[str]] = {}
    for kind in MACHINES.values():
        if kind.size_gb:
            cards_of.setdefault(kind.size_gb, []).append(kind.name)
    for size, cards in sorted(cards_of.items()):
        if cards == [SPARK]:
            cells = _listed(ON_A_SPARK), f"{_listed(_of_two_sparks())} (two machines)"
        else:
            cells = _served(cards, 1), _served(cards, 2)
        alike.setdefault(cells, []).append(size)
    for (one, two), sizes in alike.items():
        cards = [card for size in sizes for card in cards_of[size]]
        if one != NOTHING and SPARK not in cards:
            two += "; or two servers of one each (`--set replicas=2`)"
        yield f"{', '.join(map(str, sizes))} GB", _listed(cards), one, two


def _of_two_sparks() -> Iterator[str]:
    for loaded in _profiles(SPARK):
        if loaded.profile.nodes == 2:
            yield loaded.profile.name


def _served(cards: Sequence[str], gpus: int) -> str:
    """Return the first profile of each size of target that fits, with the longest context of one request."""
    found: dict[Size | None, str] = {}
    for loaded in _profiles(ANY_GPU):
        profile = loaded.profile
        size = size_called(profile.target.model.rpartition("/")[2])
        if size in found or gpus_each(profile) != gpus:
            continue
        fitting = [(card, plan) for card in cards if (plan := _fitting(loaded, counted_name(card, gpus)))]
        if fitting:
            least = min(plan.longest for _, plan in fitting)
            only = "" if len(fitting) == len(cards) else f", on {_listed(card for card, _ in fitting)}"
            found[size] = f"`{profile.name}` (up to {least:,} tokens{only})"
    return "; ".join(found.values()) or NOTHING


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@functools.cache
def _profiles(kind: str) -> tuple[Loaded, ...]:
    """Return the shipped profiles for a kind of machine, in the order in which `up` offers them."""
    names = [name for name in profile_names([data.PROFILES]) if not name.startswith("_")]
    ordered = sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    loaded = [load_profile(name) for name in ordered]
    return tuple(one for one in loaded if machine_kind(one.profile.machine) == kind)


def _fitting(loaded: Loaded, machine: str) -> MemoryPlan | None:
    """Return the memory of a profile on a machine; None where it does not fit, is refused, or cannot be computed."""
    there = load_profile(loaded.profile.name, overrides=(f"machine={machine}",))
    vllm, _ = release_for(there, None)
    try:
        plan = plan_on(there.profile, vllm, shapes=True)
    except EnvironmentMissing:
        return None
    findings = check(there, patches=_shelf(), asked=vllm, notes=False)
    refused = any(finding.severity == "error" for finding in findings)
    return None if plan.problems() or refused else plan


@functools.cache
def _shelf() -> Shelf:
    return Shelf(data.patch_folders())
