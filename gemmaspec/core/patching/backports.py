"""Speed patches that need no measurement on each GPU: what a later release of vLLM does on every GPU."""

from __future__ import annotations

import re
from typing import Final

from gemmaspec.core.patching.patch import Patch

_ORIGIN: Final = re.compile(r"backport, vllm (\d+\.\d+\.\d+)")
"""The `origin` of code that a release of vLLM has, and not of a pull request alone."""
NUMBERS: Final = "numbers.py"
"""The file of a patch that proves what its kernels compute, over their domain."""


def later_release(patch: Patch) -> str | None:
    """Return the release of vLLM that does on every GPU what a speed patch does; None where there is none.

    Upstream's choice counts only with a proof that the patch computes the same, because its code is older there.
    """
    found = _ORIGIN.fullmatch(patch.text.origin or "")
    if found is None or not patch.is_speed or not patch.text.reviewed:
        return None
    if (patch.folder / NUMBERS).is_file():
        return found[1]
    return None


def reason_for(patch: Patch, *, vllm: str, method: str, backend: str | None) -> str | None:
    """Return the reason, to follow a patch's name, for what a later release does; None where it does not count.

    It counts for a server of this release, method and backend. The methods are those that need the patch, the backends
    those that it was written for.
    """
    later = later_release(patch)
    if later is None or not patch.claims(vllm) or patch.text.required_by is None:
        return None
    backends = set().union(*(claim.backends for claim in patch.text.pays))
    if method in patch.text.required_by.methods and backend in backends:
        return f"as vLLM {later} does"
    return None
