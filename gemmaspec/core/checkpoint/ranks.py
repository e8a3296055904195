"""What one GPU of several holds of a model, as vLLM's own classes divide it. Pure.

published/data/ranks.json has the bytes of each part that rank 0 of 1, 2, 4 and 8 GPUs builds, for the published sizes
and heads in BF16 (tools/oracle_ranks.py). A checkpoint in another format keeps the shares, because a format changes
what a number takes and not where it lies.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.checkpoint.model import TextModel

_DATA: Final = Path(__file__).parent / "published" / "data" / "ranks.json"
WHOLE: Final = ("towers", "rotary", "whole")
"""Parts that every GPU has whole, where vLLM was not asked about the model: encoders, rotary tables, norms, routers."""


def row_of(text: TextModel) -> str:
    """Return the name of a model's row: the sizes by which vLLM divides it."""
    heads = sorted({(layer.kind, layer.heads, layer.kv_heads, layer.head_dim) for layer in text.layers})
    shapes = " ".join(f"{kind}:{queries}/{keys}x{width}" for kind, queries, keys, width in heads)
    inner, experts = text.intermediate_size, text.experts
    return f"{text.hidden_size}x{len(text.layers)} {shapes} inner {inner} experts {experts}"


def is_asked(text: TextModel, gpus: int) -> bool:
    """Return whether vLLM's own answer is recorded of how so many GPUs divide such a model."""
    return gpus == 1 or str(gpus) in _models().get(row_of(text), {})


def on_each(text: TextModel, part: str, gpus: int) -> Fraction:
    """Return the share of a part that one of so many GPUs holds.

    Where vLLM was not asked, encoders, rotary tables and norms are whole on every GPU, a layer's keys and values never
    less than one head, and the rest divides evenly.
    """
    if gpus == 1:
        return Fraction(1)
    row = _models().get(row_of(text), {})
    alone, shared = row.get("1", {}).get(part), row.get(str(gpus), {}).get(part)
    if alone and shared:
        return Fraction(shared, alone)
    if part in WHOLE:
        return Fraction(1)
    if part == "keys":
        if _few(text, gpus):
            return max(Fraction(1, layer.kv_heads) for layer in text.layers)
        return Fraction(1, gpus)
    return Fraction(1, gpus)


def _few(text: TextModel, gpus: int) -> bool:
    return any(layer.kv_heads < gpus for layer in text.layers)


@functools.cache
def _models() -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    document: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8")) if _DATA.exists() else {}
    models: dict[str, dict[str, dict[str, int]]] = document.get("models", {})
    return models
