"""Google's quantization-aware-trained checkpoints: tensors and declaration in compressed-tensors' form. Pure.

W4A16, as people who opened its files describe it: every linear layer that `ignore` does not name is INT4 in groups of
32, and `ignore` has exact names, also of each linear layer of the encoders, with the `.linear` of its wrapper. The
output head is stored though the embeddings are tied, so that the file of the 31B has these 2,009 tensors and, but for
its header, these 23,265,352,448 bytes, and that of the 12B its 10,264,229,896; for E4B and E2B it is assumed.

Mobile: bits as transformers' own conversion gives them (models/gemma4/convert_gemma4_weights.py, E2B and E4B): INT8
activations in and out, with one scale each. How its `ignore` and its groups are spelled is assumed: expressions for
the groups, and exact names for what is not quantized. That the encoders have a byte for each weight, and F32 for the
rest, is inferred: so the files have their sizes (E4B 3,734,269,116 bytes, E2B 2,672 MB) within 0.3%.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from published.shapes import Shapes, tensors

GROUP: Final = 32
"""Weights that one scale of W4A16 is for."""
_MOBILE: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "E2B": (
        (r"embed_tokens_per_layer$", 4),
        (r"embed_tokens$", 2),
        (r"lm_head$", 2),
        (r"layers\.\d+\.per_layer_(input_gate|projection)$", 8),
        (r"vision_tower\.", 8),
        (r"audio_tower\.layers\.\d+\.lconv1d\.linear_start", 4),
        (r"audio_tower\.", 2),
        (r"layers\.\d+\.self_attn\.", 4),
        (r"layers\.(\d|1[0-4])\.mlp\.", 4),
        (r"layers\.\d+\.mlp\.", 2),
    ),
    "E4B": (
        (r"embed_tokens_per_layer$", 2),
        (r"embed_tokens$", 2),
        (r"lm_head$", 2),
        (r"layers\.\d+\.per_layer_(input_gate|projection)$", 8),
        (r"vision_tower\.", 8),
        (r"audio_tower\.layers\.\d+\.lconv1d\.linear_start", 4),
        (r"audio_tower\.", 2),
        (r"layers\.\d+\.self_attn\.", 4),
        (r"layers\.\d+\.mlp\.", 4),
    ),
}
"""Size → the bits of the first expression that is in a module's name."""
_PLAIN: Final = (
    "vision_tower.patch_embedder",
    "audio_tower.subsample_conv_projection",
    "audio_tower.output_proj",
    "relative_k_proj",
    "embed_audio",
    "embed_vision",
    "per_layer_model_projection",
)
"""Parts of the names of what a mobile checkpoint keeps in BF16 (modules_to_not_convert of the same conversion)."""
_BLOCK: Final = 256
"""Weights that one scale of the per-layer embeddings is for: a scale for each layer."""


def built(form: str, size: str, config: dict[str, Any]) -> tuple[dict[str, Any], Shapes]:
    """Return config.json and the tensors of a checkpoint of Google's: W4A16-QAT or mobile-QAT."""
    plain = tensors(config, unread_keys=form == "mobile-QAT")
    if form == "mobile-QAT":
        config = {**config, "tie_word_embeddings": False}
        config["text_config"] = {**config["text_config"], "tie_word_embeddings": False}
        for tower in ("vision_config", "audio_config"):
            config[tower] = {**config[tower], "use_clipped_linears": False}
        return {**config, "quantization_config": mobile_declaration(size, mobile_kept(plain))}, mobile(size, plain)
    lacking = {"vision_config": dict(config["vision_config"])}
    lacking["vision_config"].pop("num_soft_tokens", None)  # people met a 12B without it (vLLM issue 44494)
    config = {**config, **lacking}
    ignore = kept(plain)
    head = next(shape for name, shape in plain.items() if name.endswith(".embed_tokens.weight"))
    stored = {**w4a16(plain, frozenset(ignore)), "lm_head.weight": head}
    return {**config, "quantization_config": w4a16_declaration(ignore)}, stored


def w4a16(shapes: Shapes, left: frozenset[str]) -> Shapes:
    """Return the shapes with every linear layer in INT4, in groups of 32, but for the modules in `left`."""
    stored: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        module = name.removesuffix(".weight")
        if not is_linear(name, shape) or module in left:
            stored[name] = (dtype, shape)
            continue
        stored.update(_packed(module, shape, bits=4, group=GROUP))
    return stored


def kept(shapes: Shapes) -> list[str]:
    """Return the exact names that `ignore` of a W4A16 checkpoint has: the encoders' linear layers and the head."""
    outside = [name for name, (_, shape) in shapes.items() if is_linear(name, shape) and not _in_decoder(name)]
    return [*(name.removesuffix(".weight") for name in outside), "lm_head"]


def is_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is the matrix of a linear layer, not of an embedding."""
    return name.endswith(".weight") and len(shape) == 2 and "embed_tokens" not in name


def _in_decoder(name: str) -> bool:
    return ".language_model." in name


def _packed(module: str, shape: tuple[int, ...], *, bits: int, group: int | None) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of one pack-quantized module. Without a group a row has one scale."""
    rows, columns = shape
    yield f"{module}.weight_packed", ("I32", (rows, math.ceil(columns * bits / 32)))
    yield f"{module}.weight_scale", ("BF16", (rows, columns // group if group else 1))
    yield f"{module}.weight_shape", ("I64", (2,))


def mobile(size: str, shapes: Shapes) -> Shapes:
    """Return the shapes of a mobile checkpoint: 2, 4 and 8 bits, and a scale for a layer's inputs and its outputs.

    Its layers do not clip, and it has an output head of its own.
    """
    plain = {name: shape for name, shape in shapes.items() if not name.endswith(_BOUNDS)}
    plain["lm_head.weight"] = next(shape for name, shape in plain.items() if name.endswith(".embed_tokens.weight"))
    stored: Shapes = {}
    for name, (_, shape) in plain.items():
        module = name.removesuffix(".weight")
        bits = mobile_bits(size, module) if name.endswith(".weight") and len(shape) == 2 else None
        if bits is None:
            stored[name] = ("BF16" if _in_decoder(name) else "F32", shape)
            continue
        stored.update(_mobile_module(module, shape, bits))
        if "embed_tokens" not in module:
            stored[f"{module}.input_scale"] = ("F32", (1,))
            stored[f"{module}.output_scale"] = ("F32", (1,))
    return stored


_BOUNDS: Final = (".input_min", ".input_max", ".output_min", ".output_max")


def mobile_bits(size: str, module: str) -> int | None:
    """Return the bits of a module of a mobile checkpoint; None for one that stays in BF16."""
    if any(part in module for part in _PLAIN):
        return None
    return next((bits for expression, bits in _MOBILE[size] if re.search(expression, module)), None)


def _mobile_module(module: str, shape: tuple[int, ...], bits: int) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of one module. The encoders' are not packed: format int-quantized."""
    if bits < 8 and "_tower" not in module:
        group = _BLOCK if module.endswith("embed_tokens_per_layer") else None
        yield from _packed(module, shape, bits=bits, group=group)
        return
    yield f"{module}.weight", ("I8", shape)
    yield f"{module}.weight_scale", ("BF16", (shape[0], 1))


def mobile_declaration(size: str, ignore: list[str]) -> dict[str, Any]:
    """Return `quantization_config` of a mobile checkpoint: a group for each of its expressions."""
    groups: dict[str, Any] = {}
    for number, (expression, bits) in enumerate(_MOBILE[size]):
        embeds = "embed_tokens" in expression
        block = _BLOCK if "embed_tokens_per_layer" in expression else None
        both = None if embeds else _ACTIVATIONS
        groups[f"group_{number}"] = {
            "format": "int-quantized" if bits == 8 or "_tower" in expression else "pack-quantized",
            "targets": [f"re:.*{expression}" if expression.endswith("$") else f"re:.*{expression}.*"],
            "weights": _weights(bits, group=block),
            "input_activations": both,
            "output_activations": both,
        }
    return _declared("mixed-precision", groups, ignore)


_ACTIVATIONS: Final[Mapping[str, Any]] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "dynamic": False,
    "strategy": "tensor",
}


def mobile_kept(shapes: Shapes) -> list[str]:
    """Return the exact names that `ignore` of a mobile checkpoint has."""
    linear = [name.removesuffix(".weight") for name, (_, shape) in shapes.items() if is_linear(name, shape)]
    return [module for module in linear if any(part in module for part in _PLAIN)]


def w4a16_declaration(ignore: list[str]) -> dict[str, Any]:
    """Return `quantization_config` of a W4A16 checkpoint."""
    weights = _weights(4, group=GROUP)
    group = {"format": "pack-quantized", "targets": ["Linear"], "weights": weights, "input_activations": None}
    return _declared("pack-quantized", {"group_0": {**group, "output_activations": None}}, ignore)


def _weights(bits: int, *, group: int | None) -> dict[str, Any]:
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": True, "dynamic": False}
    return {**weights, "strategy": "group" if group else "channel", "group_size": group, "actorder": None}


def _declared(form: str, groups: dict[str, Any], ignore: list[str]) -> dict[str, Any]:
    declared = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**declared, "kv_cache_scheme": None, "config_groups": groups, "ignore": ignore}
