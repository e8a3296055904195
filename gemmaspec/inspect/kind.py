"""Base or instruct: the two are told apart by what surrounds the weights."""

from __future__ import annotations

import re
from typing import Final, Literal

from gemmaspec.checkpoint.model import Checkpoint

Kind = Literal["instruct", "base"]
_PUBLISHED: Final = re.compile(r"google/gemma-4-[\w.]+?(-it)?(-assistant)?", re.IGNORECASE)
_IT: Final = re.compile(r"(?:^|[-_/])it(?:[-_.]|$)|instruct|-chat", re.IGNORECASE)


def kind_of(checkpoint: Checkpoint) -> tuple[Kind | None, str]:
    """The kind and what it was told by; the model card is trusted more than the name, the name more than files."""
    for base in checkpoint.base_models:
        match = _PUBLISHED.fullmatch(base)
        if match:
            return ("instruct" if match[1] else "base"), f"its card names {base}"
    if _IT.search(checkpoint.ref.rstrip("/").rpartition("/")[2]):
        return "instruct", "its name says so"
    if checkpoint.has_chat_template is None:
        return None, "nothing tells"
    if checkpoint.has_chat_template:
        return "instruct", "it has a chat template"
    return "base", "it has no chat template"
