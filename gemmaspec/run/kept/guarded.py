"""Whether the memory of the machine of a started server is guarded, as its profile says."""

from __future__ import annotations

from gemmaspec.core.profile.model import Profile
from gemmaspec.run.kept.served_profile import profile_of
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine.memory_guard import wants_guard


def is_guarded(started: Started, profile: Profile | None = None) -> bool:
    """Return whether a server is ended before its machine runs out of memory; never for one on another machine.

    `profile` is what it serves, where that was read; else it is read as the record names it.
    """
    if started.server.nodes or started.server.reached_at is not None:
        return False
    profile = profile or profile_of(started)
    return profile is not None and wants_guard(profile)
