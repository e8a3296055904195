"""Checkpoints of the published shapes, as their headers would describe them: names, types and sizes, no weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gemmaspec.core.checkpoint.model import Checkpoint, Quantization, Tensor, TextModel
from tests.support.kv_shapes import published

WIDTHS: dict[str, dict[str, Any]] = {
    "31B": {"hidden_size": 5376, "intermediate_size": 21504, "max_position_embeddings": 262144},
    "26B-A4B": {
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "max_position_embeddings": 262144,
        "experts": 128,
        "experts_per_token": 8,
    },
    "E2B": {"hidden_size": 1536, "intermediate_size": 6144, "hidden_size_per_layer_input": 256},
    "E4B": {"hidden_size": 2560, "intermediate_size": 10240, "hidden_size_per_layer_input": 256},
}
TOWERS = {"31B": 1_153_000_000, "E2B": 990_000_000}
"""Bytes of image and audio towers, as vLLM held them."""
DOUBLE_WIDE = ("E2B",)
"""Layers that share a cache have twice the inner width."""
HEADS = {"31B": 32, "26B-A4B": 16, "E2B": 8, "E4B": 8}


def checkpoint(name: str, *, nvfp4: bool = False, towers: bool = True) -> Checkpoint:
    """One published shape, in BF16 or with NVFP4 linear layers."""
    shape = published(name)
    layers = tuple(
        replace(layer, heads=HEADS[name], keys_are_values=name == "31B" and layer.kind == "full")
        for layer in shape.layers
    )
    width: dict[str, Any] = {"vocab_size": 262144, "vocab_size_per_layer_input": 262144} | WIDTHS[name]
    text = replace(shape, layers=layers, double_wide=name in DOUBLE_WIDE, **width)
    both = "vision" if name in ("31B", "26B-A4B") and towers else None
    return Checkpoint(
        ref=f"someone/{name}",
        revision=None,
        architecture="Gemma4ForConditionalGeneration",
        model_type="gemma4",
        dtype="bfloat16",
        text=text,
        modalities=frozenset({"text", "image"} if towers else {"text"}),
        quantization=Quantization(method="modelopt", algorithm="NVFP4") if nvfp4 else None,
        tensors=tuple(_tensors(text, nvfp4=nvfp4, towers=towers, double=name in DOUBLE_WIDE)),
        config={"text_config": {"use_bidirectional_attention": both}},
    )


def _tensors(text: TextModel, *, nvfp4: bool, towers: bool, double: bool) -> Iterator[Tensor]:
    prefix = "model.language_model"
    yield _plain(f"{prefix}.embed_tokens.weight", text.vocab_size, text.hidden_size)
    if text.hidden_size_per_layer_input:
        rows = text.vocab_size_per_layer_input, len(text.layers) * text.hidden_size_per_layer_input
        yield _plain(f"{prefix}.embed_tokens_per_layer.weight", *rows)
    for index, layer in enumerate(text.layers):
        queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        inner, hidden = (
            text.intermediate_size * (2 if double and layer.shares_with is not None else 1),
            text.hidden_size,
        )
        linear = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "o_proj": (hidden, queries)}
        if not layer.keys_are_values:
            linear["v_proj"] = (keys, hidden)
        for name, (rows_, columns) in linear.items():
            yield from _linear(f"{prefix}.layers.{index}.self_attn.{name}", rows_, columns, nvfp4)
        for name, (rows_, columns) in {"gate_up_proj": (2 * inner, hidden), "down_proj": (hidden, inner)}.items():
            yield from _linear(f"{prefix}.layers.{index}.mlp.{name}", rows_, columns, nvfp4)
        if text.experts:
            yield _plain(f"{prefix}.layers.{index}.experts.gate_up_proj", text.experts, 2 * 704, hidden)
            yield _plain(f"{prefix}.layers.{index}.experts.down_proj", text.experts, hidden, 704)
    if towers:
        yield _plain(
            "model.vision_tower.encoder.layers.0.mlp.weight", TOWERS["31B" if text.hidden_size > 2560 else "E2B"] // 2
        )


def _plain(name: str, *shape: int) -> Tensor:
    return Tensor(name=name, dtype="BF16", shape=shape, nbytes=2 * math.prod(shape))


def _linear(name: str, rows: int, columns: int, nvfp4: bool) -> Iterator[Tensor]:
    if not nvfp4:
        yield _plain(f"{name}.weight", rows, columns)
        return
    half, scales = columns // 2, columns // 16
    yield Tensor(name=f"{name}.weight", dtype="U8", shape=(rows, half), nbytes=rows * half)
    yield Tensor(name=f"{name}.weight_scale", dtype="F8_E4M3", shape=(rows, scales), nbytes=rows * scales)
