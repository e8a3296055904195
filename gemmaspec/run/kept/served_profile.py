"""The profile that a started server serves, read again with the options of its start."""

from __future__ import annotations

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.kept.stacks import Started


def profile_of(started: Started) -> Profile | None:
    """Return it; None where its file is gone or is not valid any more."""
    try:
        return load_profile(started.profile, overrides=started.overrides, no_spec=started.no_spec).profile
    except GemmaspecError:
        return None
