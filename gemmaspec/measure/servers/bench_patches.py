"""Patches for speed as arms of `bench`: the profile's own, none, some, or all but one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gemmaspec.core import data
from gemmaspec.core.errors import UsageError
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.run.stack.speed import speed_choice

OWN: Final = "speed"
"""The patches that the profile takes."""
NONE: Final = "none"
RELEASED: Final = "released"
"""vLLM as released: no patches for speed, and its own choice of every kernel."""
_KERNELS: Final = ("serve.attention_backend", "serve.linear_backend", "serve.moe_backend")
_HEADS: Final = ("speculative.attention_backend", "speculative.moe_backend")
WITHOUT: Final = "without "


def patch_arms(arms: Sequence[Arm], sets: Sequence[str], profile: str, overrides: Sequence[str]) -> tuple[Arm, ...]:
    """Return each arm with each set of patches for speed; arms that would run the same are measured once.

    A set is `speed`, `none`, `released`, ids joined by +, or `without ID`. Raises UsageError for an id that the
    profile does not take, and where all sets are the same; PatchError for an unknown id or a patch of a defect.
    """
    if not sets:
        return tuple(arms)
    shelf = Shelf(data.patch_folders())
    kept: dict[tuple[str, int, frozenset[str], bool], Arm] = {}
    for arm in arms:
        plain = load_profile(profile, overrides=(*overrides, *arm.overrides), no_spec=arm.alone).profile
        for wanted in sets:
            own = replace(arm, patches=wanted, overrides=(*arm.overrides, *_override(wanted, plain, shelf, arm)))
            run = load_profile(profile, overrides=(*overrides, *own.overrides), no_spec=arm.alone).profile
            kept.setdefault((arm.method, arm.k, frozenset(speed_choice(run, shelf).taken), wanted == RELEASED), own)
    if len(kept) == len(arms) and len(sets) > 1:
        raise UsageError(_all_same(profile, overrides, shelf), hint=f"gemmaspec up {profile} --dry-run")
    return tuple(kept.values())


def _override(wanted: str, profile: Profile, shelf: Shelf, arm: Arm) -> tuple[str, ...]:
    if wanted == OWN:
        return ()
    if wanted == NONE:
        return ("patches.speed=off",)
    if wanted == RELEASED:
        named = [*_KERNELS, *(() if arm.alone else _HEADS)]
        return ("patches.speed=off", *(f"{key}=" for key in named))
    if not wanted.startswith(WITHOUT):
        return (f"patches.speed=[{', '.join(wanted.split('+'))}]",)
    left = wanted.removeprefix(WITHOUT)
    taken = list(speed_choice(profile, shelf).taken)
    if left not in taken and not arm.alone:
        takes = ", ".join(taken) or "none"
        raise UsageError(f"without {left}: {profile.name} does not take it; the patches for speed here are {takes}")
    rest = [patch for patch in taken if patch != left and left not in shelf[patch].text.needs]
    return (f"patches.speed=[{', '.join(rest)}]",) if rest else ("patches.speed=off",)


def _all_same(profile: str, overrides: Sequence[str], shelf: Shelf) -> str:
    choice = speed_choice(load_profile(profile, overrides=overrides).profile, shelf)
    why = "; ".join(f"{name}: {text}" for name, text in choice.left_out.items()) or "there are none"
    return (
        f"{profile} takes no patch for speed that these sets could differ in ({why}); name one: --speed-patches ID,none"
    )
