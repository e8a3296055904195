"""The sizes of Gemma 4, and what a model's name alone says of it. A new size is a row here. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

UNIFIED: Final = "Gemma4UnifiedForConditionalGeneration"
"""Without encoders: one linear layer each for images and audio (transformers models/gemma4_unified)."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Facts of all models of one size, from their config.json."""

    called: str
    """A regular expression for it in names, without what stands before and after."""
    context: int
    """max_position_embeddings."""
    window: int
    """Tokens of the sliding window."""
    shares_kv: bool = False
    """Whether layers read the KV cache of others."""
    experts: bool = False
    large_towers: bool = False
    """Whether it has the large vision encoder, and no audio."""
    masks: bool = False
    """Whether tokens of its images attend to later ones (use_bidirectional_attention)."""
    unified: bool = False
    """Whether its architecture is UNIFIED."""


SIZES: Final[Mapping[str, Size]] = {
    "E2B": Size(called="e2b", context=131_072, window=512, shares_kv=True),
    "E4B": Size(called="e4b", context=131_072, window=512, shares_kv=True),
    "12B": Size(called="gemma-?4-12b", context=262_144, window=1024, masks=True, unified=True),
    "26B-A4B": Size(called="26b[-_]?a4b", context=262_144, window=1024, masks=True, experts=True, large_towers=True),
    "31B": Size(called="31b", context=262_144, window=1024, masks=True, large_towers=True),
}
_CALLED: Final = {
    size: re.compile(rf"(?<![a-z0-9])(?:{facts.called})(?![a-z0-9])", re.IGNORECASE) for size, facts in SIZES.items()
}


def size_called(name: str) -> Size | None:
    """Return the size that a model's name says; None if it names none that is known."""
    for size, called in _CALLED.items():
        if called.search(name):
            return SIZES[size]
    return None


_FAMILIES: Final = re.compile(
    r"(?<![a-z0-9])(?:(?:code|pali|shield|med|t5|function)?gemma[-_]?(?:[123](?:n|[-_.:]|$)|[0-9]{1,2}b)|qwen|qwq|llama|mi[sn]tral"
    r"|mixtral|devstral|phi[-_]?[0-9]|deepseek|gpt[-_]oss|glm|granite|kimi|nemotron|olmo|falcon|minimax|gemma(?:[-_]it|$))",
    re.IGNORECASE,
)
"""Families of other models, at the beginning of a word."""
_GEMMA_4: Final = re.compile(r"gemma-?4", re.IGNORECASE)


def is_other_family(name: str) -> bool:
    """Return whether a model's name says that it is another family than Gemma 4; a head's name holds its target's."""
    return _FAMILIES.search(name) is not None and _GEMMA_4.search(name) is None
