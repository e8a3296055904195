"""Patches and images used by the shipped profiles."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmaspec.core import data
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Profile


@cache
def shipped() -> Sequence[Loaded]:
    """Return every shipped profile that can be run, by name, with the places of its values."""
    return tuple(load_profile(str(file)) for file in profile_names((data.PROFILES,)).values())


def shipped_profiles() -> Sequence[Profile]:
    """Return every shipped profile, without the places of its values."""
    return tuple(loaded.profile for loaded in shipped())


@dataclass(frozen=True, kw_only=True)
class Uses:
    """The shipped profiles that list a patch."""

    required: tuple[str, ...]
    optional: tuple[str, ...]


def uses(patch: str) -> Uses:
    """Return which shipped profiles list a patch, and how."""
    profiles = shipped_profiles()
    return Uses(
        required=tuple(profile.name for profile in profiles if patch in profile.patches.required),
        optional=tuple(profile.name for profile in profiles if patch in profile.patches.optional),
    )


def is_required(patch: str, *, asked_for: bool = False) -> bool:
    """Return whether a conflict of the patch counts, because a shipped or own profile requires it.

    A patch that no profile lists counts if the command names it.
    """
    lists = [profile.patches for profile in at_hand()]
    if any(patch in choice.required for choice in lists):
        return True
    return asked_for and not any(patch in choice.optional for choice in lists)


def at_hand() -> Sequence[Profile]:
    """Return every profile that can be run, including the user's own; invalid ones are skipped, lint reports them."""
    files = [file for file in profile_names().values() if file.is_file()]
    return _loaded(tuple((file, file.stat().st_mtime_ns) for file in files))


@cache
def _loaded(files: tuple[tuple[Path, int], ...]) -> Sequence[Profile]:
    profiles = []
    for file, _ in files:
        with contextlib.suppress(GemmaspecError):
            profiles.append(load_profile(str(file)).profile)
    return profiles


def shipped_images() -> dict[str, str]:
    """Return the images of the shipped profiles, each with its profile's interpreter."""
    return {profile.image: profile.container.python for profile in shipped_profiles() if profile.image}
