"""Base or instruct, which can be told only from the files around the weights."""

from __future__ import annotations

import re
from typing import Final, Literal

from gemmaspec.checkpoint.parts import Checkpoint

Kind = Literal["instruct", "base"]
_PUBLISHED: Final = re.compile(r"google/gemma-4-[\w.]+?(-it)?(-assistant)?", re.IGNORECASE)
_IT: Final = re.compile(r"(?:^|[-_/])it(?:[-_.]|$)|instruct|-chat", re.IGNORECASE)


def kind_of(checkpoint: Checkpoint) -> tuple[Kind | None, str]:
    """Return the kind and the evidence; the model card takes precedence over the name, and the name over the files."""
    for base in checkpoint.base_models:
        match = _PUBLISHED.fullmatch(base)
        if match:
            return ("instruct" if match[1] else "base"), f"its card names {base}"
    if _IT.search(checkpoint.ref.rstrip("/").rpartition("/")[2]):
        return "instruct", "its name says so"
    if checkpoint.has_chat_template is None:
        return None, "unknown"
    if checkpoint.has_chat_template:
        return "instruct", "it has a chat template"
    return "base", "it has no chat template"
