"""A checkpoint as its own files describe it: layers, quantization, tensors.

Plain data; other modules read the files.

Facts from the tensors themselves: bytes and parameters by part, and each module's storage format.

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
from dataclasses import dataclass, field
from typing import Final, Literal

LayerKind = Literal["sliding", "full"]
"""Gemma 4's two kinds of attention layer: `sliding_attention` and `full_attention` in config.json."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer: its attention and KV cache."""

    kind: LayerKind
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens that a sliding layer sees; None for full attention."""
    keys_are_values: bool = False
    """`attention_k_eq_v`: no value projection is stored, because the keys serve as values too."""
    shares_with: int | None = None
    """Index of the earlier layer whose cache this one reads instead of its own."""
    shares_target: bool = False
    """Whether it reads the target's cache instead of its own, as every layer of a Gemma 4 assistant."""


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """The decoder of a checkpoint."""

    layers: tuple[Layer, ...]
    hidden_size: int
    intermediate_size: int
    """Width of a feed-forward layer; `inner` gives that of one layer."""
    vocab_size: int
    max_position_embeddings: int
    """The longest context the checkpoint was made for, in tokens."""
    hidden_size_per_layer_input: int = 0
    """Width of the per-layer embeddings of E2B and E4B; 0 for a model without them."""
    vocab_size_per_layer_input: int = 0
    experts: int = 0
    """Routed experts of each layer of a mixture of experts; 0 for a dense model."""
    experts_per_token: int = 0
    tied_embeddings: bool = True
    """Whether the input embeddings are the output head too."""
    double_wide: bool = False
    """Whether layers that share another's cache are twice as wide inside, as in E2B (gemma4.py, every release)."""

    def inner(self, layer: Layer) -> int:
        """Return the width of the feed-forward part of one layer."""
        return self.intermediate_size * (2 if self.double_wide and layer.shares_with is not None else 1)


@dataclass(frozen=True, kw_only=True)
class Speculator:
    """What a checkpoint that only drafts states about its target."""

    method: str
    """`method` of vLLM's speculative config: mtp, eagle3, dflash, dspark."""
    target_hidden_size: int | None = None
    draft_vocab_size: int | None = None
    """Number of tokens that it can propose, if fewer than the target's vocabulary."""
    target_layers: tuple[int, ...] = ()
    """Target layers whose hidden states it reads."""
    scored_tokens: int | None = None
    """Rows of its output head that it reads for one token; None means all. Assistants of E2B and E4B group the
    vocabulary by centroids and score only the nearest groups."""
    num_speculative_tokens: int | None = None
    verifier: str | None = None
    """The target that it names."""
    parallel: bool = False
    """P-EAGLE: all tokens in one pass, `parallel_drafting` of vLLM's speculative config."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One stored tensor, as its safetensors header describes it."""

    name: str
    dtype: str
    """safetensors' name of the type: BF16, F8_E4M3, U8 …"""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The checkpoint's own declaration (quantization_config, hf_quant_config.json)."""

    method: str
    """`modelopt`, `compressed-tensors`, `fp8` …: the value for `--quantization`."""
    algorithm: str | None = None
    """NVFP4, NVFP4_AWQ, FP8, W4A16_NVFP4 …: the declaring tool's name."""
    kv_cache: str | None = None
    """The declared KV cache format, such as FP8; the tensors then include its scales."""
    group_size: int | None = None
    excluded: tuple[str, ...] = ()
    """Module patterns that stay unquantized."""
    by_layer: Mapping[str, str] = field(default_factory=dict)
    """Module → algorithm of a MIXED_PRECISION checkpoint of ModelOpt."""
    of_groups: tuple[str, ...] = ()
    """Algorithm of each group of compressed-tensors, sorted, each once: W2A8, W4A16 …"""
    declared_in: str = "config.json"
    contradicted_by: str | None = None
    """The algorithm in hf_quant_config.json, if config.json names another."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that is known without reading a weight."""

    ref: str
    """Hugging Face id or folder, as requested."""
    revision: str | None
    """Commit hash if known; None for a folder."""
    architecture: str
    """First of `architectures`, such as Gemma4ForConditionalGeneration."""
    model_type: str
    dtype: str
    """The declared dtype: bfloat16 …"""
    text: TextModel
    modalities: frozenset[str]
    """Which of text, image, audio and video the stored encoders accept."""
    quantization: Quantization | None
    tensors: tuple[Tensor, ...] = ()
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Token → id of the control tokens, from the tokenizer's files; empty if they were not read."""
    tokenizer_digest: str | None = None
    """sha256 of the file tokenizer.json, which the Hub lists without a download."""
    has_chat_template: bool | None = None
    """Whether it has a chat template (base checkpoints of Gemma 4 do not); None if not checked."""
    base_models: tuple[str, ...] = ()
    """`base_model` of the model card."""
    speculator: Speculator | None = None
    """Set for a checkpoint that can only draft."""
    missing_files: tuple[str, ...] = ()
    """Missing weight files, according to its file names or its index."""
    unindexed_files: tuple[str, ...] = ()
    """Weight files that its index does not name."""
    other_weights: tuple[str, ...] = ()
    """Weight files in another format than safetensors: .bin, .gguf. gemmaspec does not read them."""
    has_tokenizer: bool | None = None
    """Whether it has the file of a tokenizer; None if not checked."""
    tokenizer_damaged: bool = False
    """Whether its tokenizer.json cannot be read as JSON."""
    source: Literal["folder", "cache", "hub", "shipped"] = "folder"
    """Where it was read; `shipped` means the shapes that ship with gemmaspec, used if nothing else is available."""
    bytes_read: int = 0
    """Number of bytes of its files that were read."""
    config: Mapping[str, object] = field(default_factory=dict)
    """The content of config.json, for values without a field here."""

    @property
    def attends_both_ways(self) -> bool:
        """Whether tokens of an image attend to later ones, as in 31B, 26B-A4B and 12B."""
        text = self.config.get("text_config")
        return isinstance(text, Mapping) and text.get("use_bidirectional_attention") == "vision"

    @property
    def masks_images(self) -> bool:
        """Whether vLLM gives images a mask (is_mm_prefix_lm, from 0.20.0); not a decoder alone.

        A checkpoint without towers counts: with `vision_config: null` 0.32.0 answers the same.
        """
        return self.model_type in ("gemma4", "gemma4_unified") and self.attends_both_ways

    @property
    def wants_whole_images(self) -> bool:
        """Whether masked images count for the batch; those of a 12B do not (0.32.0 leaves its default batch)."""
        return self.model_type == "gemma4" and self.masks_images

    @property
    def nbytes(self) -> int:
        """Total size of the stored tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


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
    return _NAMES[min(ranks)] if ranks else "other"


def stored(tensors: Iterable[Tensor], text: TextModel | None = None) -> Stored:
    """Return the format of each module, and the existing scales.

    `text` tells the width of a packed matrix, and so its bits; without it, an I32 counts as eight weights.
    """
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for tensor in tensors:
        module, _, leaf = tensor.name.rpartition(".")
        modules[module][leaf] = tensor
    formats: dict[str, list[str]] = defaultdict(list)
    for module, leaves in modules.items():
        kind = _format(leaves, text)
        if kind:
            formats[kind].append(module)
    leaf_counts = Counter(leaf for leaves in modules.values() for leaf in leaves)
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
        return text.inner(layer) if "experts" not in name else None
    if module == "per_layer_projection":
        return text.hidden_size_per_layer_input
    return text.hidden_size if module in _FROM_HIDDEN else None


_LAYER_NUMBER: Final = re.compile(r"\blayers\.([0-9]{1,4})\.")
_FROM_HIDDEN: Final = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "per_layer_input_gate")


def _bits(tensor: Tensor, text: TextModel | None) -> int:
    """Return the bits of one weight of a matrix packed into I32 along its inputs, as compressed-tensors does."""
    width = input_width(text, tensor.name) if text else None
    if not width or not tensor.shape:
        return 4
    fitting = (bits for bits in (4, 8, 2, 3, 5, 6) if tensor.shape[-1] == math.ceil(width / (32 // bits)))
    return next(fitting, 4)


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
        return "MXFP8" if scale and scale.dtype in ("U8", "F8_E8M0") else "FP8"
    if weight.dtype == "I32" and "weight_packed" in leaves:
        return f"INT{_bits(weight, text)}"
    if weight.dtype in ("I32", "U32") and "scales" in leaves:
        return "INT4"
    return {"I8": "INT8"}.get(weight.dtype, weight.dtype)
