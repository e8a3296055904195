"""How vLLM detects a draft's method, by release (SpeculativeConfig.__post_init__ in vllm/config/speculative.py)."""

from __future__ import annotations

import re
from typing import Final

from gemmaspec.releases.gemma4 import within

_BY_PATH: Final = (
    ("eagle-", "eagle", "0.19.0"),
    ("eagle3", "eagle3", "0.19.0"),
    ("dflash", "dflash", "0.20.0"),
    ("dspark", "dspark", "0.25.0"),
)
"""Parts of a draft's path, in vLLM's order, the method that vLLM derives from them, and the first release that does so
("Automatically detect the method")."""
HEAD_FORMATS: Final = (
    ("dflash2", "speculator.dflash2", "0.30.0"),
    ("dspark", "speculator.dspark", "0.26.0"),
    ("peagle", "speculator.peagle", "0.24.0"),
)
"""`speculators_model_type`, the name of such a head, and the first release that reads it for a Gemma 4
(vllm/transformers_utils/configs/speculators/algos.py)."""
_TAKES_HEADS: Final = ">=0.21"
_ASSISTANT: Final = re.compile(r"assistant", re.IGNORECASE)


def found_in_path(path: str, vllm: str | None = None) -> tuple[str, str, str] | None:
    """Return the part of a draft's path from which vLLM derives a method, that method, and its first release.

    `vllm` restricts the answer to one release; None means any. Return None if no part of the path decides.
    """
    found = (one for one in _BY_PATH if one[0] in path.lower() and (vllm is None or within(vllm, f">={one[2]}")))
    return next(found, None)


def method_found(path: str) -> str:
    """Return the method that vLLM drafts with when a config names a draft and no method, as far as its name says it."""
    by_path = found_in_path(path)
    return by_path[1] if by_path else "mtp" if _ASSISTANT.search(path) else "draft_model"


def keeps_method(method: str, vllm: str) -> bool:
    """Return whether vLLM keeps a method, whatever the draft's path."""
    return any(taken == method and within(vllm, f">={since}") for _, taken, since in _BY_PATH)


def method_run(method: str | None, vllm: str, *, head: str | None, called: str | None) -> str | None:
    """Return the method that vLLM drafts with if a profile sets `method`.

    From 0.21 on, vLLM detects EAGLE-3 and DFlash heads and Gemma 4 assistants, even if the profile sets draft_model or
    mtp. `head` is the method of the draft's checkpoint, if it was read and is a head. `called` is the draft's name if
    the checkpoint was not read, else None.
    """
    if not within(vllm, _TAKES_HEADS):
        return method
    if method in ("draft_model", "mtp") and head:
        return head
    if method == "draft_model" and called and _ASSISTANT.search(called):
        return "mtp"
    return method


def shortens(method: str | None, vllm: str, runner: str) -> bool:
    """Return whether a draft's longest context becomes the server's (VllmConfig._limit_max_model_len_to_draft)."""
    return method == "draft_model" and runner == "v2" and within(vllm, ">=0.33")
