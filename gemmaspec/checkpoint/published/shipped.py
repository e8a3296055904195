"""Published checkpoints whose shapes ship with gemmaspec, so that answers about them need no network. Pure.

A configuration ships, with the names, types and shapes of the tensors that follow from it and from the quantization,
but no weights. A publisher can change a checkpoint at any time. Every answer that uses these shapes says so, with their
revision if it was recorded.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.checkpoint.config import describe
from gemmaspec.checkpoint.fields import Fields, declared
from gemmaspec.checkpoint.parts import Checkpoint, Tensor
from gemmaspec.checkpoint.published import blocks, configs, shapes
from gemmaspec.checkpoint.published.shapes import Shapes
from gemmaspec.checkpoint.sizes import SIZES, size_called

NOT_RECORDED: Final = "revision not recorded"
_SIZES: Final = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "F32": 4, "I32": 4, "I64": 8}
_LEFT: Final = ("lm_head", "vision_tower", "embed_vision", "audio_tower", "embed_audio")
"""What is never quantized, as parts of names."""
_LAYER: Final = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "attention_bias": False}
"""What vLLM reads of a head's layers in addition to their shapes."""
_TOWERS: Final = ("model.vision_", "model.embed_vision", "model.audio_tower", "model.embed_audio")


@dataclass(frozen=True, kw_only=True)
class PublishedCheckpoint:
    """The facts about one published checkpoint."""

    ref: str
    kind: str
    """model, assistant, eagle3, dflash2 or dspark."""
    size: str
    form: str
    """BF16, FP8, NVFP4, NVFP4A16, NVFP4-AWQ, or NVFP4-mlp if attention stays in BF16."""
    base: bool
    towers: bool
    method: str
    """The tool that quantized it."""
    revision: str | None
    date: str | None
    source: str
    """The source of the shapes."""

    @property
    def says(self) -> str:
        """Return the note for an answer that uses these shapes."""
        return f"using the shapes of {self.ref} that ship with gemmaspec ({self.revision or NOT_RECORDED})"


@functools.cache
def shipped() -> dict[str, PublishedCheckpoint]:
    """Return every checkpoint whose shapes ship, by its id in lower case."""
    raw = json.loads((configs.DATA / "models.json").read_text(encoding="utf-8"))["models"]
    return {entry["ref"].lower(): _entry(entry) for entry in raw}


def shipped_for(ref: str) -> PublishedCheckpoint | None:
    """Return the shipped facts about a Hugging Face id; None if there are none."""
    return shipped().get(ref.lower())


def draft_for(model: str) -> str | None:
    """Return Google's MTP head for a target, by the target's name; None for a base model and for another family."""
    name = model.rstrip("/").rpartition("/")[2]
    if not re.search(r"gemma-?4", name, re.IGNORECASE) or not re.search(r"[-_]it(?![a-z])", name, re.IGNORECASE):
        return None
    size = size_called(name)
    heads = (entry for entry in shipped().values() if entry.kind == "assistant" and SIZES.get(entry.size) is size)
    return next((head.ref for head in heads), None) if size else None


def checkpoint_of(known: PublishedCheckpoint) -> Checkpoint:
    """Return the checkpoint as its headers would describe it, without the tokenizer."""
    config, tensors = _built(known)
    fields = Fields(config, "config.json")
    described = describe(fields)
    return Checkpoint(
        ref=known.ref,
        revision=known.revision,
        architecture=described.architecture,
        model_type=described.model_type,
        dtype=described.dtype,
        text=described.text,
        modalities=described.modalities,
        quantization=declared(fields, None),
        tensors=tuple(_tensors(tensors)),
        has_chat_template=None if known.kind != "model" else not known.base,
        speculator=described.speculator,
        source="shipped",
        config=config,
    )


def servable_config(known: PublishedCheckpoint) -> dict[str, Any]:
    """Return config.json with all that vLLM reads to build the model.

    Where images are served, vLLM needs the encoder's shapes, also of a checkpoint that is stored without it.
    """
    config, _ = _built(known)
    if known.kind == "model":
        config |= {part: configs.config(known.size)[part] for part in ("vision_config", "audio_config")}
    if layer := config.get("transformer_layer_config"):
        layer |= {name: value for name, value in _LAYER.items() if name not in layer}
    return config


def _entry(entry: dict[str, Any]) -> PublishedCheckpoint:
    return PublishedCheckpoint(
        ref=entry["ref"],
        kind=entry["kind"],
        size=entry["size"],
        form=entry["form"],
        base=entry.get("base", False),
        towers=entry.get("towers", True),
        method=entry.get("method", "modelopt"),
        revision=entry["revision"],
        date=entry["date"],
        source=entry["source"],
    )


def _built(known: PublishedCheckpoint) -> tuple[dict[str, Any], Shapes]:
    if known.kind == "assistant":
        config = configs.assistant_config(known.size)
        return config, shapes.assistant_tensors(config)
    if known.kind == "eagle3":
        config = configs.eagle3_config()
        return config, shapes.eagle3_tensors(config)
    if known.kind in ("dflash2", "dspark"):
        config = configs.block_config(known.kind)
        make = blocks.dflash2_tensors if known.kind == "dflash2" else blocks.dspark_tensors
        return config, make(config)
    config = configs.config(known.size)
    stored = _quantized(known, shapes.tensors(config))
    if not known.towers:
        config = configs.config(known.size, towers=False)
        stored = {name: shape for name, shape in stored.items() if not name.startswith(_TOWERS)}
    if known.form != "BF16":
        config["quantization_config"] = _declaration(known)
    return config, stored


def _quantized(known: PublishedCheckpoint, plain: Shapes) -> Shapes:
    if known.form == "BF16":
        return plain
    if known.form == "FP8":
        return shapes.fp8(shapes.split_experts(plain) if known.method == "compressed-tensors" else plain)
    if ".experts." in "".join(plain):
        return shapes.single_experts(plain)
    if known.form == "NVFP4-mlp":
        return shapes.nvfp4(plain, quantized=lambda name: shapes.is_decoder_linear(name) and ".mlp." in name)
    return shapes.nvfp4(plain, awq=known.form == "NVFP4-AWQ", inputs=known.form != "NVFP4A16")


def _declaration(known: PublishedCheckpoint) -> dict[str, Any]:
    parts = [*_LEFT, *(["self_attn"] if known.form == "NVFP4-mlp" else [])]
    left = [f"*{part}*" for part in parts]
    if known.form == "FP8" and known.method == "compressed-tensors":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
        inputs = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
        return _compressed("float-quantized", weights, inputs, parts)
    if known.form == "FP8":
        return {"quant_method": "fp8", "ignored_layers": left}
    if known.method == "compressed-tensors":
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        weights |= {"symmetric": True, "dynamic": False}
        both = None if known.form == "NVFP4A16" else {**weights, "dynamic": "local"}
        return _compressed("nvfp4-pack-quantized", weights, both, parts)
    algorithm = {"NVFP4A16": "W4A16_NVFP4", "NVFP4-AWQ": "NVFP4_AWQ"}.get(known.form, "NVFP4")
    return {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16, "ignore": left}


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None, parts: list[str]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    left = [f"re:.*{part}.*" for part in parts]
    quantization = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**quantization, "config_groups": groups, "ignore": left}


def _tensors(made: Shapes) -> Iterator[Tensor]:
    for name, (dtype, shape) in made.items():
        yield Tensor(name=name, dtype=dtype, shape=shape, nbytes=_SIZES[dtype] * math.prod(shape))
