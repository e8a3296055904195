"""Which vLLM release a profile will run, as far as the profile itself states it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from gemmaspec.profile.model import Profile

_TAG: Final = re.compile(r":[a-z-]*v?([0-9]\.[0-9]+\.[0-9]+)(?:[.-][A-Za-z0-9.-]*)?(?:@.*)?$")


def vllm_of(profile: Profile) -> str | None:
    """Return the release: `runtime.vllm`, else the version in the image's tag; None if neither states it.

    A tag such as cu130-nightly moves, so only the image itself shows its version. 26.01.1 and 2026.11.21 are dates.
    """
    if profile.runtime.vllm:
        return profile.runtime.vllm
    found = _TAG.search(profile.image or "")
    return found[1] if found else None


def can_be_process(profile: Profile) -> bool:
    """Return whether the profile states which vLLM a process would run; a container brings its own."""
    return bool(profile.runtime.vllm or profile.runtime.python)


def settings_digest(profile: Profile) -> str:
    """Return sha256:… of everything in a profile that decides how its server runs.

    Its name, its figures, where it listens and what `watch` does are left out.
    """
    left_out = {"schema_": True, "name": True, "summary": True, "measured": True, "tuned": True, "watch": True}
    whole = profile.model_dump(mode="json", exclude={**left_out, "serve": {"port", "bind"}})
    return f"sha256:{hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()}"
