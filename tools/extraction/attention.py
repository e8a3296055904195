"""What Gemma4Config decides about attention, as far as its code can be read.

Gemma 4 has two head sizes, and vllm/model_executor/models/config.py chooses one backend for both.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

from extraction.sources import Sources

MODELS: Final = "vllm/model_executor/models/config.py"
FLASH: Final = "vllm/vllm_flash_attn/flash_attn_interface.py"


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The backends and versions that the code mentions."""

    falls_to: frozenset[str] = frozenset()
    """Backends that it sets, as TRITON_ATTN."""
    flash_attention: frozenset[str] = frozenset()
    """Versions of FlashAttention that it requests."""
    families: frozenset[str] = frozenset()
    """Compute capabilities, times ten, on which FlashAttention 4 is available (_is_fa4_supported)."""


def attention_of(sources: Sources) -> Attention:
    """Return what Gemma4Config mentions. Raise Unexpected if the class is missing."""
    _, config = sources.class_of(MODELS, "Gemma4Config")
    found = sources.find(FLASH, "_is_fa4_supported")
    return Attention(
        falls_to=frozenset(
            node.attr
            for assign in ast.walk(config)
            if isinstance(assign, ast.Assign)
            for node in ast.walk(assign.value)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "AttentionBackendEnum"
        ),
        flash_attention=_arguments(config, "is_fa_version_supported"),
        families=_arguments(found[1], "is_device_capability_family") if found else frozenset(),
    )


def _arguments(inside: ast.AST, function: str) -> frozenset[str]:
    """Return the constants that a function is called with."""
    return frozenset(
        str(argument.value)
        for node in ast.walk(inside)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == function
        for argument in node.args
        if isinstance(argument, ast.Constant)
    )
