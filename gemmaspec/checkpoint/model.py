"""A checkpoint as its own files describe it: layers, quantization, tensors. Plain data, read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LayerKind = Literal["sliding", "full"]
"""Gemma 4's two kinds of attention layer: `sliding_attention` and `full_attention` in config.json."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer, as far as attention and its cache go."""

    kind: LayerKind
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens that a sliding layer sees; None for full attention."""
    keys_are_values: bool = False
    """`attention_k_eq_v`: no value projection is stored, the keys serve as values too."""
    shares_with: int | None = None
    """Index of the earlier layer whose cache this one reads; it has none of its own."""
    shares_target: bool = False
    """It reads the target's cache and has none of its own: every layer of a Gemma 4 assistant."""


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """The decoder of a checkpoint."""

    layers: tuple[Layer, ...]
    hidden_size: int
    intermediate_size: int
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


@dataclass(frozen=True, kw_only=True)
class Speculator:
    """What a checkpoint that only drafts says of the target it was made for."""

    method: str
    """`method` of vLLM's speculative config: mtp, eagle3, dflash, dspark."""
    target_hidden_size: int | None = None
    draft_vocab_size: int | None = None
    """Tokens it can propose, when that is fewer than the target knows."""
    target_layers: tuple[int, ...] = ()
    """Target layers whose hidden states it reads."""
    scored_tokens: int | None = None
    """Rows of its output head that it reads for one token; None for all of them. Assistants of E2B and E4B group the
    vocabulary by centroids and score the nearest groups only."""
    num_speculative_tokens: int | None = None
    verifier: str | None = None
    """The target that it names."""
    parallel: bool = False
    """P-EAGLE: all tokens in one pass, `parallel_drafting` of vLLM's speculative config."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One stored tensor, as its safetensors header has it."""

    name: str
    dtype: str
    """In safetensors' words: BF16, F8_E4M3, U8 …"""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What the checkpoint says of itself (quantization_config, hf_quant_config.json)."""

    method: str
    """`modelopt`, `compressed-tensors`, `fp8` …: what `--quantization` would be called."""
    algorithm: str | None = None
    """NVFP4, NVFP4_AWQ, FP8, W4A16_NVFP4 …, in the declaring tool's words."""
    kv_cache: str | None = None
    """The declared KV cache format, such as FP8; its scales then lie among the tensors."""
    group_size: int | None = None
    excluded: tuple[str, ...] = ()
    """Module patterns that stay unquantized."""
    by_layer: Mapping[str, str] = field(default_factory=dict)
    """Module → algorithm of a MIXED_PRECISION checkpoint."""
    declared_in: str = "config.json"
    contradicted_by: str | None = None
    """The algorithm that hf_quant_config.json names, where config.json names another."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that can be told without reading a weight."""

    ref: str
    """Hugging Face id or folder, as asked for."""
    revision: str | None
    """Commit hash where it is known; None for a folder."""
    architecture: str
    """First of `architectures`, such as Gemma4ForConditionalGeneration."""
    model_type: str
    dtype: str
    """The declared dtype: bfloat16 …"""
    text: TextModel
    modalities: frozenset[str]
    """Of text, image, audio, video: what the stored towers can take."""
    quantization: Quantization | None
    tensors: tuple[Tensor, ...] = ()
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Token → id of the control tokens, from the tokenizer's files; empty when they were not read."""
    tokenizer_digest: str | None = None
    """sha256 of tokenizer.json as a file, which the Hub's listing tells without a download."""
    has_chat_template: bool | None = None
    """Base checkpoints of Gemma 4 have none; None when not looked for."""
    base_models: tuple[str, ...] = ()
    """`base_model` of the model card."""
    speculator: Speculator | None = None
    """Set for a checkpoint that can only draft."""
    missing_files: tuple[str, ...] = ()
    """Weight files that its own naming or index promises and that are not there."""
    unindexed_files: tuple[str, ...] = ()
    """Weight files that are there, and that its index does not name."""
    other_weights: tuple[str, ...] = ()
    """Weight files in another format than safetensors: .bin, .gguf. They are not read."""
    has_tokenizer: bool | None = None
    """Whether a file holds a tokenizer; None when not looked for."""
    source: Literal["folder", "cache", "hub", "shipped"] = "folder"
    """Where it was read; shipped: nobody could be asked, and gemmaspec brings the shapes itself."""
    bytes_read: int = 0
    """How much of its files was read to tell all this."""
    config: Mapping[str, object] = field(default_factory=dict)
    """config.json as it was read, for what has no field here."""

    @property
    def attends_both_ways(self) -> bool:
        """Whether tokens of an image see those after them, as in 31B and 26B-A4B."""
        text = self.config.get("text_config")
        return isinstance(text, Mapping) and text.get("use_bidirectional_attention") == "vision"

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)
