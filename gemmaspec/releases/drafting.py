"""What vLLM takes a draft for, and since when (SpeculativeConfig.__post_init__ in vllm/config/speculative.py)."""

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
"""Parts of a draft's path, in vLLM's order, the method that vLLM takes them for, and the first release that does
("Automatically detect the method")."""
HEAD_FORMATS: Final = (
    ("dflash2", "speculator.dflash2", "0.30.0"),
    ("dspark", "speculator.dspark", "0.26.0"),
    ("peagle", "speculator.peagle", "0.24.0"),
)
"""`speculators_model_type`, how such a head is called, and the first release that reads it for a Gemma 4
(vllm/transformers_utils/configs/speculators/algos.py)."""
_TAKES_HEADS: Final = ">=0.21"
_ASSISTANT: Final = re.compile(r"assistant", re.IGNORECASE)


def found_in_path(path: str, vllm: str | None = None) -> tuple[str, str, str] | None:
    """Return the part of a draft's path that vLLM takes for a method, that method, and its first release.

    `vllm`: only what this release does; None for every release. None if no part of the path decides.
    """
    found = (one for one in _BY_PATH if one[0] in path.lower() and (vllm is None or within(vllm, f">={one[2]}")))
    return next(found, None)


def keeps_method(method: str, vllm: str) -> bool:
    """Return whether vLLM leaves a method as it is, whatever the draft's path."""
    return any(taken == method and within(vllm, f">={since}") for _, taken, since in _BY_PATH)


def method_run(method: str | None, vllm: str, *, head: str | None, called: str | None) -> str | None:
    """Return the method that vLLM drafts with where a profile names `method`.

    It takes a head for what it is, even if draft_model or mtp is asked for: an EAGLE-3 or DFlash head and a Gemma 4
    assistant from 0.21 on. `head`: the method that the draft is made for, if it was looked into and is a head.
    `called`: the draft's name where nobody has looked, else None.
    """
    if not within(vllm, _TAKES_HEADS):
        return method
    if method in ("draft_model", "mtp") and head:
        return head
    if method == "draft_model" and called and _ASSISTANT.search(called):
        return "mtp"
    return method
