"""A checkpoint as its own files describe it: layers, quantization, tensors.

Plain data; other modules read the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
    expert_inner: int = 0
    """Width of the feed-forward part of one expert; 0 for a dense model."""
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
    """Weights that share a scale, along the inputs of a matrix; None where a whole row shares one."""
    several_group_sizes: bool = False
    """Whether groups of compressed-tensors differ in it, so that `group_size` is only the first one's."""
    bits: int | None = None
    """Bits of one weight, as GPTQ and AWQ state them."""
    symmetric: bool = True
    """Whether weights lie evenly around zero; False where GPTQ states `sym: false`."""
    block: tuple[int, int] | None = None
    """Rows and columns of weights that share a scale, for an FP8 in blocks."""
    excluded: tuple[str, ...] = ()
    """Module patterns that stay unquantized."""
    by_layer: Mapping[str, str] = field(default_factory=dict)
    """Module → algorithm of a MIXED_PRECISION checkpoint of ModelOpt."""
    of_groups: tuple[str, ...] = ()
    """Algorithm of each group of compressed-tensors, sorted, each once: W4A16, W2A8O8, W2A16 embeddings …"""
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
    def nbytes(self) -> int:
        """Total size of the stored tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)
