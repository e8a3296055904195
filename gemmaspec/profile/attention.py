"""Which attention backend a profile's target and draft get: what it sets, else what vLLM chooses for its machine."""

from __future__ import annotations

import re
from typing import Final, Literal

from gemmaspec.profile.command import Command, command_of
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Profile
from gemmaspec.releases.backends import backend_for

Role = Literal["target", "draft"]
_MASKED: Final = re.compile(r"(?<![a-z0-9])(31b|26b[-_]?a4b)(?![a-z0-9])", re.IGNORECASE)
_CAUSAL: Final = re.compile(r"(?<![a-z0-9])(e[24]b|12b)(?![a-z0-9])", re.IGNORECASE)
"""Sizes whose images see later tokens under vLLM (is_mm_prefix_lm, 0.20.0 to 0.33.0), and those whose do not."""


def backend_of(
    profile: Profile,
    vllm: str,
    *,
    role: Role = "target",
    capability: str | None = None,
    fp8: bool | None = None,
    masks: bool | None = None,
) -> str | None:
    """Return the backend by its name in vLLM's registry; None if it is not known.

    `capability` is that of the GPU that was found; default: the machine's of the profile. `fp8` and `masks` say what a
    checkpoint decides: the KV cache's format, and whether images are served that need masks. Without them the
    profile's words decide, and where these leave both open, both must lead to one backend.
    """
    command = command_of(profile)
    method = profile.speculative.method if profile.speculative else None
    if (asked := _asked(profile, command, role, method)) and asked.lower() not in ("auto", "none"):
        return asked.upper()
    if role == "draft" and method not in ("mtp", "draft_model"):
        return "FLASH_ATTN" if method else None  # block heads and EAGLE have narrow heads
    where = capability or MACHINES[profile.machine].compute_capability
    both = _masks(profile, command) if masks is None else [masks]
    seen = [False] if role == "draft" and method == "draft_model" else both
    asks: Role = "draft" if role == "draft" and method == "mtp" else "target"
    formats = _formats(command) if fp8 is None else [fp8]
    found = {backend_for(vllm, where, masks=mask, fp8=form, role=asks) for mask in seen for form in formats}
    return found.pop() if len(found) == 1 else None


def _asked(profile: Profile, command: Command, role: Role, method: str | None) -> str | None:
    """Return the backend that is set; a head of MTP takes over the target's (both runners, 0.21.0 to 0.33.0)."""
    of_target = command.value("--attention-backend")
    if role == "target":
        return of_target
    own = profile.speculative.attention_backend if profile.speculative else None
    return (of_target or own) if method == "mtp" else own


def _masks(profile: Profile, command: Command) -> list[bool]:
    """Return whether images need masks; both where that is not known."""
    limits = profile.serve.limit_mm_per_prompt or {}
    if command.switched("--language-model-only") or (len(limits) == 3 and not any(limits.values())):
        return [False]
    name = profile.target.model.rstrip("/").rpartition("/")[2]
    return [True] if _MASKED.search(name) else [False] if _CAUSAL.search(name) else [True, False]


def _formats(command: Command) -> list[bool]:
    """Return whether the KV cache is FP8; both where the checkpoint decides."""
    dtype = command.value("--kv-cache-dtype") or "auto"
    return [False, True] if dtype == "auto" else [dtype.startswith("fp8")]
