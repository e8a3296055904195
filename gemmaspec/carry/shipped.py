"""The shipped profiles, as far as patches and images of theirs are concerned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gemmaspec import data
from gemmaspec.profile.find import profile_names
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.profile.model import Profile


@cache
def shipped() -> Sequence[Loaded]:
    """Every shipped profile that can be run, by name, with the places of its values."""
    return tuple(load_profile(str(file)) for file in profile_names((data.PROFILES,)).values())


def shipped_profiles() -> Sequence[Profile]:
    """The same without the places."""
    return tuple(loaded.profile for loaded in shipped())


@dataclass(frozen=True, kw_only=True)
class Uses:
    """The shipped profiles that list a patch."""

    required: tuple[str, ...]
    optional: tuple[str, ...]


def uses(patch: str) -> Uses:
    """Which shipped profiles list a patch, and how."""
    profiles = shipped_profiles()
    return Uses(
        required=tuple(one.name for one in profiles if patch in one.patches.required),
        optional=tuple(one.name for one in profiles if patch in one.patches.optional),
    )


def is_required(patch: str) -> bool:
    """Whether a conflict of the patch counts: always, unless shipped profiles only list it as optional."""
    found = uses(patch)
    return bool(found.required) or not found.optional


def shipped_images() -> dict[str, str]:
    """The images of the shipped profiles, each with the interpreter that its profile names."""
    return {one.image: one.container.python for one in shipped_profiles() if one.image}
