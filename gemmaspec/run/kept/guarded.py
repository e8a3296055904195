"""Whether the memory of the machine of a started server is guarded, as its profile says."""

from __future__ import annotations

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine.memory_guard import wants_guard


def is_guarded(started: Started) -> bool:
    """Return whether a server is ended before its machine runs out of memory; never for one on another machine."""
    if started.server.nodes or started.server.reached_at is not None:
        return False
    try:
        return wants_guard(load_profile(started.profile, overrides=started.overrides).profile)
    except GemmaspecError:  # the profile is gone or has changed, and what it wished is not known
        return False
