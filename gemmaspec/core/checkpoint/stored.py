"""Facts from the tensors themselves: bytes and parameters by part, and each module's storage format.

NVFP4 appears as three of safetensors' types: U8 holds two 4-bit weights per byte, F8_E4M3 one scale per 16 weights,
and unquantized modules are BF16. A list of tensor types, such as the Hub's, therefore does not identify the format of
a checkpoint.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.checkpoint.model import Tensor, TextModel

PARTS: Final = {
    "vision": ("vision_tower", "vision_embedder", "embed_vision", "vision_model", "multi_modal_projector"),
    "audio": ("audio_tower", "embed_audio"),
    "lm_head": ("lm_head",),
    "per-layer embeddings": ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"),
    "embeddings": ("embed_tokens",),
    "decoder layers": ("layers", "midlayer"),
}
"""Part → parts of a tensor's name, checked in this order because the encoders have layers too."""
_NAMES: Final = tuple(PARTS)
_RANKS: Final = {mark: rank for rank, marks in enumerate(PARTS.values()) for mark in marks}
"""Part of a tensor's name → the place of its part in PARTS. A model has thousands of tensors."""
SCALES: Final = frozenset(
    {
        *("weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale"),
        *("weight_shape", "weight_zero_point", "input_scale", "input_global_scale", "output_scale"),
        *("pre_quant_scale", "k_scale", "v_scale", "q_scale"),
        *("scales", "biases", "qzeros", "g_idx"),
    }
)
"""Endings of names that belong to a quantized weight and are not parameters themselves."""
_WEIGHTS: Final = ("weight", "weight_packed", "qweight")


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """One part of a model."""

    name: str
    nbytes: int
    parameters: int
    types: Mapping[str, int]
    """safetensors' type → bytes."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The storage formats of the modules."""

    formats: Mapping[str, tuple[str, ...]]
    """NVFP4, FP8, INT4, BF16 … → names of the modules, for linear modules and embeddings (not norms)."""
    pre_quant_scales: int
    """Modules with a factor per input channel: NVFP4_AWQ."""
    input_scales: int
    """Quantized modules with a scale for their activations."""
    kv_scales: int
    """k_scale and v_scale tensors."""

    def count(self, *formats: str) -> int:
        """Return the number of modules stored in any of these formats."""
        return sum(len(self.formats.get(name, ())) for name in formats)


def parts(tensors: Iterable[Tensor], text: TextModel | None = None) -> tuple[ModelPart, ...]:
    """Return bytes and parameters by part, in the order of PARTS, with the rest last. `text`: as for `stored`."""
    by_part: dict[str, list[Tensor]] = defaultdict(list)
    tensors = tuple(tensors)
    packed = _packed_modules(tensors, text)
    for tensor in tensors:
        by_part[part_of(tensor.name)].append(tensor)
    order = ["decoder layers", "embeddings", "per-layer embeddings", "lm_head", "vision", "audio", "other"]
    return tuple(_part(name, by_part[name], packed) for name in order if name in by_part)


@functools.lru_cache(maxsize=1 << 16)  # fit asks again for each change that it tries
def part_of(name: str) -> str:
    """Return the part that a tensor belongs to, by its name."""
    ranks = [_RANKS[word] for word in name.split(".") if word in _RANKS]
    if ranks:
        return _NAMES[min(ranks)]
    return "other"


def stored(tensors: Iterable[Tensor], text: TextModel | None = None) -> Stored:
    """Return the format of each module, and the existing scales.

    `text` tells the width of a packed matrix, and so its bits; without it, an I32 counts as eight weights.
    """
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        modules[module][leaf] = tensor
    formats: dict[str, list[str]] = defaultdict(list)
    leaf_counts: Counter[str] = Counter()
    for module, leaves in modules.items():
        leaf_counts.update(leaves.keys())
        kind = _format(leaves, text)
        if kind:
            formats[kind].append(module)
    return Stored(
        formats={kind: tuple(names) for kind, names in sorted(formats.items())},
        pre_quant_scales=leaf_counts["pre_quant_scale"],
        input_scales=leaf_counts["input_scale"] + leaf_counts["input_global_scale"],
        kv_scales=leaf_counts["k_scale"] + leaf_counts["v_scale"],
    )


def parameters(tensors: Iterable[Tensor], text: TextModel | None = None) -> int:
    """Return the number of parameters of a model; packed weights are counted unpacked, and scales not at all.

    An output head that is stored although the embeddings are tied is not counted again. `text`: as for `stored`.
    """
    tensors = tuple(tensors)
    if text and text.tied_embeddings:
        tensors = tuple(tensor for tensor in tensors if part_of(tensor.name) != "lm_head")
    packed = _packed_modules(tensors, text)
    return sum(_parameters(tensor, packed) for tensor in tensors)


def _part(name: str, tensors: list[Tensor], packed: Mapping[str, int]) -> ModelPart:
    types: Counter[str] = Counter()
    for tensor in tensors:
        types[tensor.dtype] += tensor.nbytes
    return ModelPart(
        name=name,
        nbytes=sum(tensor.nbytes for tensor in tensors),
        parameters=sum(_parameters(tensor, packed) for tensor in tensors),
        types=dict(sorted(types.items())),
    )


def input_width(text: TextModel, name: str) -> int | None:
    """Return how many inputs a matrix of the decoder, its embeddings or its head has; None for any other."""
    part, module = part_of(name), name.rpartition(".")[0].rpartition(".")[2]
    if part in ("embeddings", "lm_head"):
        return text.hidden_size
    if module == "embed_tokens_per_layer":
        return text.hidden_size_per_layer_input * len(text.layers)
    match = _LAYER_NUMBER.search(name)
    if part != "decoder layers" or match is None or int(match[1]) >= len(text.layers):
        return None
    layer = text.layers[int(match[1])]
    if module == "o_proj":
        return layer.heads * layer.head_dim
    if module == "down_proj":
        if "experts" not in name:
            return text.inner(layer)
        return None
    if module == "per_layer_projection":
        return text.hidden_size_per_layer_input
    if module in _FROM_HIDDEN:
        return text.hidden_size
    return None


_LAYER_NUMBER: Final = re.compile(r"\blayers\.([0-9]{1,4})\.")
_FROM_HIDDEN: Final = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "per_layer_input_gate")


def _bits(tensor: Tensor, text: TextModel | None) -> int:
    """Return the bits of one weight of a matrix packed into I32 along its inputs, as compressed-tensors does."""
    width = input_width(text, tensor.name) if text else None
    if not width or not tensor.shape:
        return 4
    for bits in (4, 8, 2, 3, 5, 6):
        weights_in_one = 32 // bits
        if tensor.shape[-1] == math.ceil(width / weights_in_one):
            return bits
    return 4


def _packed_modules(tensors: tuple[Tensor, ...], text: TextModel | None) -> dict[str, int]:
    """Return weight tensor → parameters per element: two 4-bit weights in a U8, eight in an I32, sixteen of 2 bits.

    AutoAWQ and GPTQ store qweight, qzeros and scales; MLX packs into U32, with scales and biases.
    """
    names = {tensor.name for tensor in tensors}
    packed: dict[str, int] = {}
    for tensor in tensors:
        base = tensor.name.removesuffix("_packed")
        if f"{base}_scale" in names and tensor.dtype == "U8":
            packed[tensor.name] = 2
        elif f"{base}_scale" in names and tensor.dtype == "I32":
            packed[tensor.name] = 32 // _bits(tensor, text)
        elif tensor.dtype in ("I32", "U32") and f"{tensor.name.rpartition('.')[0]}.scales" in names:
            packed[tensor.name] = 8
    return packed


def _parameters(tensor: Tensor, packed: Mapping[str, int]) -> int:
    if tensor.name.rpartition(".")[2] in SCALES:
        return 0
    return math.prod(tensor.shape) * packed.get(tensor.name, 1)


def _format(leaves: Mapping[str, Tensor], text: TextModel | None) -> str | None:
    """Return the format of one module; None for one without a matrix (norms, scalars)."""
    weight = next((leaves[leaf] for leaf in _WEIGHTS if leaf in leaves), None)
    if weight is None or len(weight.shape) < 2:
        return None
    scale = leaves.get("weight_scale")
    if weight.dtype == "U8" and scale:
        return {"F8_E4M3": "NVFP4", "U8": "MXFP4", "F8_E8M0": "MXFP4"}.get(scale.dtype, "packed U8")
    if weight.dtype.startswith("F8"):
        if scale and scale.dtype in ("U8", "F8_E8M0"):
            return "MXFP8"
        return "FP8"
    if weight.dtype == "I32" and "weight_packed" in leaves:
        return f"INT{_bits(weight, text)}"
    if weight.dtype in ("I32", "U32") and "scales" in leaves:
        return "INT4"
    return {"I8": "INT8"}.get(weight.dtype, weight.dtype)
