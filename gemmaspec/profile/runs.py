"""Which vLLM release a profile will run, as far as the profile itself says."""

from __future__ import annotations

import re
from typing import Final

from gemmaspec.profile.model import Profile

_TAG: Final = re.compile(r":[a-z-]*v?([0-9]\.[0-9]+\.[0-9]+)(?:[.-][A-Za-z0-9.-]*)?(?:@.*)?$")


def vllm_of(profile: Profile) -> str | None:
    """The release: `runtime.vllm`, else the version in the image's tag; None when neither says it.

    A tag such as cu130-nightly moves, and what it holds is known only where the image is; 26.01.1 and 2026.11.21 are
    dates.
    """
    if profile.runtime.vllm:
        return profile.runtime.vllm
    found = _TAG.search(profile.image or "")
    return found[1] if found else None


def can_be_process(profile: Profile) -> bool:
    """Return whether the profile says which vLLM a process would run; a container brings its own."""
    return bool(profile.runtime.vllm or profile.runtime.python)
