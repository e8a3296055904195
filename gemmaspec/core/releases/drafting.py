"""How vLLM detects a draft's method, by release (SpeculativeConfig.__post_init__ in vllm/config/speculative.py).

What works for Gemma 4 in which vLLM release.

No code states this: drafting.yaml is written by hand, each part with its source.

Which transformers releases run Gemma 4 with which vLLM releases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.core import launcher, strict_yaml

HybridManager = Literal["on", "off", "any"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to speculate that works for a Gemma 4 target in some releases, and its requirements."""

    method: str
    versions: str
    hybrid_manager: HybridManager = "any"
    """The required setting of the hybrid KV cache manager."""
    patches: tuple[str, ...] = ()
    """Shipped patches without which vLLM does not start, or dies."""
    patches_when: tuple[tuple[str, str], ...] = ()
    """Further patches, each with the condition under which it is needed."""
    note: str = ""


TABLE: Final = Path(__file__).with_suffix(".yaml")
ROWS: Final = strict_yaml.table(TABLE)


def _method(row: Mapping[str, Any]) -> Method:
    lists = {"patches": tuple(row.get("patches", ())), "patches_when": tuple(row.get("patches_when", {}).items())}
    return Method(**{**row, **lists})


METHODS: Final = tuple(map(_method, ROWS["methods"]))
KEYS_OF_METHODS: Final[Mapping[str, Sequence[str]]] = ROWS["keys_of_methods"]
KEYS_OF_ACCEPTANCE: Final[Mapping[str, str]] = ROWS["keys_of_acceptance"]
BLOCKS: Final = ("dflash", "dspark")
"""Methods that draft all tokens in one pass."""
FEATURES: Final[Mapping[str, str]] = ROWS["features"]
"""Flags → what model runner v2 may lack, in vLLM's words."""


def since(method: str) -> str | None:
    """Return the first release in which a method drafts for a Gemma 4 target; None for a method that never does."""
    for row in METHODS:
        if row.method == method:
            return row.versions.removeprefix(">=").partition(",")[0]
    return None


def within(vllm: str, versions: str) -> bool:
    """Return whether a version is in a range, by its release number; one without a number counts as very new."""
    return launcher.range_contains(versions, vllm if vllm[:1].isdigit() else "999")


TRANSFORMERS_BY_VLLM: Final = tuple(ROWS["transformers"].items())
"""(vLLM releases, transformers releases)."""
ASSISTANTS_FROM: Final = "5.8.0"
"""The first transformers with Gemma 4's MTP head (vLLM 0.21's tests/models/registry.py)."""


def transformers_for(vllm: str) -> str | None:
    """Return the transformers range for one released vLLM; None for a release that is not in the table."""
    for releases, bound in TRANSFORMERS_BY_VLLM:
        if launcher.range_contains(releases, vllm):
            return str(bound)
    return None


_BY_PATH: Final = tuple(map(tuple, ROWS["by_path"]))
HEAD_FORMATS: Final = tuple(map(tuple, ROWS["head_formats"]))
"""`speculators_model_type`, the name of such a head, and the first release that reads it for a Gemma 4."""
_TAKES_HEADS: Final = ">=0.21"
_ASSISTANT: Final = re.compile(r"assistant", re.IGNORECASE)


def found_in_path(path: str, vllm: str | None = None) -> tuple[str, str, str] | None:
    """Return the part of a draft's path from which vLLM derives a method, that method, and its first release.

    `vllm` restricts the answer to one release; None means any. Return None if no part of the path decides.
    """
    for part, method, first in _BY_PATH:
        if part in path.lower() and (vllm is None or within(vllm, f">={first}")):
            return part, method, first
    return None


def method_found(path: str) -> str:
    """Return the method that vLLM drafts with when a config names a draft and no method, as far as its name says it."""
    by_path = found_in_path(path)
    if by_path:
        return by_path[1]
    if _ASSISTANT.search(path):
        return "mtp"
    return "draft_model"


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
