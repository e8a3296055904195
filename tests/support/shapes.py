"""Checkpoints of the published shapes without their weights: real configs, real headers, zeros for bodies.

The sizes are those of transformers' conversion script for Gemma 4 (models/gemma4/convert_gemma4_weights.py), the
tensor names those that transformers gives such models; test_checkpoint_real.py holds both against transformers.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from published.configs import (
    assistant_config,
    config,
    eagle3_config,
    text_of,
)
from published.shapes import (
    Shapes,
    assistant_tensors,
    eagle3_tensors,
    is_decoder_linear,
    nvfp4,
    single_experts,
    tensors,
)

from tests.support.hub import Body, Zeros

__all__ = [
    "Shapes",
    "assistant_config",
    "assistant_tensors",
    "config",
    "eagle3_config",
    "eagle3_tensors",
    "is_decoder_linear",
    "nvfp4",
    "per_layer_form",
    "single_experts",
    "tensors",
    "text_of",
]

SIZES = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "F32": 4, "I32": 4, "I64": 8}
TEXTS = {size: text_of(size) for size in ("31B", "26B-A4B", "E2B", "E4B")}
SPECIAL = {
    "<pad>": 0, "<eos>": 1, "<bos>": 2, "<|tool>": 46, "<|think|>": 98, "<|channel>": 100, "<|turn>": 105,
    "<turn|>": 106, "<|image>": 255999, "<|audio>": 256000, "<|image|>": 258880, "<|audio|>": 258881,
}  # fmt: skip
NOT_QUANTIZED = ["lm_head", "model.vision_tower*", "model.embed_vision*", "model.audio_tower*", "model.embed_audio*"]


def per_layer_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in the form of transformers 5.16 and newer."""
    changed = copy.deepcopy(dict(config))
    text = changed["text_config"]
    own: dict[str, Any] = {"head_dim": text.pop("global_head_dim")}
    heads = text.pop("num_global_key_value_heads")
    if text["attention_k_eq_v"] and heads is not None:
        own["num_key_value_heads"] = heads
    full = [index for index, kind in enumerate(text["layer_types"]) if kind == "full_attention"]
    text["per_layer_config"] = {f"{index:02d}": own for index in full}
    return changed


def weight_files(shapes: Shapes, *, shard: int = 5 * 10**9) -> dict[str, Body]:
    """The safetensors files of these tensors, cut as transformers cuts them, and their index."""
    shards = list(_shards(shapes, shard))
    if len(shards) == 1:
        return {"model.safetensors": safetensors(shards[0])}
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    table = {tensor: name for name, part in zip(names, shards, strict=True) for tensor in part}
    index = json.dumps({"metadata": {}, "weight_map": table}, indent=2).encode()
    files = {name: safetensors(part) for name, part in zip(names, shards, strict=True)}
    return {**files, "model.safetensors.index.json": index}


def _shards(shapes: Shapes, limit: int) -> Iterator[Shapes]:
    part, size = Shapes(), 0
    for name, (dtype, shape) in shapes.items():
        nbytes = SIZES[dtype] * math.prod(shape)
        if part and size + nbytes > limit:
            yield part
            part, size = Shapes(), 0
        part[name] = (dtype, shape)
        size += nbytes
    yield part


def safetensors(shapes: Shapes) -> Zeros:
    """One file: a header as safetensors writes it, zeros for the rest."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda one: (-SIZES[one[1][0]], one[0])):
        nbytes = SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return Zeros(len(raw).to_bytes(8, "little") + raw, 8 + len(raw) + at)


def modelopt(algorithm: str = "NVFP4", *, kv_cache: str | None = None) -> dict[str, Any]:
    """hf_quant_config.json."""
    own = {"quant_algo": algorithm, "kv_cache_quant_algo": kv_cache, "group_size": 16}
    return {"producer": {"name": "modelopt"}, "quantization": {**own, "exclude_modules": NOT_QUANTIZED}}


def tokenizer(*, more: int = 32_000_000, special: Mapping[str, int] = SPECIAL) -> bytes:
    """A tokenizer.json of the published size: control tokens first, and a vocabulary that is only filling."""
    added = [
        {"id": number, "content": token, "single_word": False, "special": True} for token, number in special.items()
    ]
    head = json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added})[:-1]
    return f'{head}, "model": {{"type": "BPE", "vocab": {{"{"x" * more}": 3}}, "merges": []}}}}'.encode()


def model(
    config: Mapping[str, Any],
    shapes: Shapes,
    *,
    instruct: bool = True,
    tokens: bytes | None = None,
    separate: Mapping[str, Any] | None = None,
) -> dict[str, Body]:
    """All files of a checkpoint."""
    files: dict[str, Body] = {"config.json": json.dumps(config, indent=2).encode(), **weight_files(shapes)}
    if instruct:
        files["chat_template.jinja"] = b"{{ messages }}" * 900
    if tokens is not None:
        files["tokenizer.json"] = tokens
        files["tokenizer_config.json"] = json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}).encode()
    if separate:
        files["hf_quant_config.json"] = json.dumps(separate).encode()
    return files


def write(folder: Path, files: Mapping[str, Body]) -> Path:
    """The files in a folder; what is zeros takes no room."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        with (folder / name).open("wb") as file:
            file.write(body if isinstance(body, bytes) else body.first)
            file.truncate(len(body))
    return folder
