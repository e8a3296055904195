"""Which attention backend a profile's target and draft get: what it sets, else what vLLM chooses for its machine."""

from __future__ import annotations

from typing import Final, Literal

from gemmaspec.checkpoint.sizes import size_called
from gemmaspec.launcher import range_contains
from gemmaspec.profile.command import Command, command_of
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Profile
from gemmaspec.releases.backends import backend_for

Role = Literal["target", "draft"]
_ASKS: Final = {"mtp": "draft", "eagle": "eagle3", "eagle3": "eagle3"}
"""Method → the kind of head that the releases were asked about."""


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
    checkpoint decides: the KV cache's format, and whether its images need masks where they are served. Without them the
    profile's words decide, and where these leave both open, both must lead to one backend.
    """
    command = command_of(profile)
    method = profile.speculative.method if profile.speculative else None
    if (asked := _asked(profile, command, role, method)) and asked.lower() not in ("auto", "none"):
        return asked.upper()
    if role == "draft" and method not in ("mtp", "draft_model", "eagle", "eagle3"):
        return "FLASH_ATTN" if method else None  # block heads are narrow
    where = capability or MACHINES[profile.machine].compute_capability
    both = _masks(profile, command, vllm, masks)
    seen = [False] if role == "draft" and method == "draft_model" else both
    asks = _ASKS.get(method or "", "target") if role == "draft" else "target"
    formats = _formats(command) if fp8 is None else [fp8]
    if role == "draft" and method == "mtp" and _keeps_targets(profile, vllm):
        return backend_of(profile, vllm, capability=capability, fp8=fp8, masks=masks)
    found = {backend_for(vllm, where, masks=mask, fp8=form, role=asks) for mask in seen for form in formats}
    return found.pop() if len(found) == 1 else None


def _asked(profile: Profile, command: Command, role: Role, method: str | None) -> str | None:
    """Return the backend that is set; a head of MTP takes over the target's (both runners, from 0.21.0)."""
    of_target = command.value("--attention-backend")
    if role == "target":
        return of_target
    own = profile.speculative.attention_backend if profile.speculative else None
    return (of_target or own) if method == "mtp" else own


def _keeps_targets(profile: Profile, vllm: str) -> bool:
    """Return whether the head of a mixture keeps the target's own choice: by model runner v1, as to 0.28."""
    size = size_called(profile.target.model.rstrip("/").rpartition("/")[2])
    v1 = profile.env.get("VLLM_USE_V2_MODEL_RUNNER") != "1" and range_contains(">=0.25.0,<0.29.0", vllm)
    return bool(size and size.experts) and v1


def images_off(profile: Profile, command: Command) -> bool:
    """Return whether a server takes neither images nor videos, for which Gemma 4 has masks; sound needs none."""
    limits = profile.serve.limit_mm_per_prompt or {}
    return bool(command.switched("--language-model-only")) or all(limits.get(kind) == 0 for kind in ("image", "video"))


def _masks(profile: Profile, command: Command, vllm: str, sees: bool | None) -> list[bool]:
    """Return whether images need masks; both where that is not known.

    Up to 0.26 a model that can see them has the masks even where it serves text alone (is_mm_prefix_lm in
    vllm/transformers_utils/model_arch_config_convertor.py got `supports_multimodal` in 0.27.0).
    """
    if images_off(profile, command) and not range_contains("<0.27.0", vllm):
        return [False]
    size = size_called(profile.target.model.rstrip("/").rpartition("/")[2])
    if sees is None:
        sees = size.masks if size else None
    return [True, False] if sees is None else [sees]


def _formats(command: Command) -> list[bool]:
    """Return whether the KV cache is FP8; both where the checkpoint decides."""
    dtype = command.value("--kv-cache-dtype") or "auto"
    return [False, True] if dtype == "auto" else [dtype.startswith("fp8")]
