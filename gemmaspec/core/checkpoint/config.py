"""config.json: the kind of checkpoint, its decoder, and, for a draft, the target that it was made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmaspec.core.checkpoint.fields import Fields
from gemmaspec.core.checkpoint.layers import gemma_text, plain_text
from gemmaspec.core.checkpoint.model import Speculator, TextModel
from gemmaspec.core.errors import CheckpointError

ASSISTANTS: Final = ("gemma4_assistant", "gemma4_unified_assistant")
"""Model types of Gemma 4's own MTP drafts (transformers models/gemma4_assistant, gemma4_unified_assistant)."""
_USUAL: Final = dict.fromkeys(("gemma4", "gemma4_unified"), "Gemma4ForConditionalGeneration")
"""Model type → the class that vLLM 0.33.0 takes where config.json names none."""
_SPECULATORS: Final = {
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
}
"""`speculators_model_type` → method (vllm/transformers_utils/configs/speculators/algos.py, 0.32.0)."""
_TOKEN_IDS: Final = ("bos", "eos", "pad", "boi", "eoi", "boa", "eoa", "image", "audio", "video")


@dataclass(frozen=True, kw_only=True)
class Described:
    """The facts in config.json."""

    architecture: str
    model_type: str
    dtype: str
    text: TextModel
    modalities: frozenset[str]
    speculator: Speculator | None
    token_ids: dict[str, int]
    """`bos_token`, `image_token` … → id."""


def describe(config: Fields) -> Described:
    """Read a config.json. Raise CheckpointError unless it describes a Gemma 4 or a draft for one."""
    architecture = next(iter(config.texts("architectures")), "")
    model_type = config.text("model_type", "")
    text = config.section("text_config") or config.section("transformer_layer_config") or config
    dtype = "unknown"
    # transformers 5 calls it dtype, and the outer config goes before the text's
    for name in ("torch_dtype", "dtype"):
        dtype = text.text(name, dtype)
    for name in ("torch_dtype", "dtype"):
        dtype = config.text(name, dtype)
    usual = architecture or _USUAL.get(model_type, "")
    return Described(
        architecture=architecture or model_type or "unknown",
        model_type=model_type or config.text("speculators_model_type", "unknown"),
        dtype=dtype,
        text=_text(config, text, architecture, model_type),
        modalities=_modalities(config, usual),
        speculator=_speculator(config, text, architecture, model_type),
        token_ids=_token_ids(config, text),
    )


def _text(config: Fields, text: Fields, architecture: str, model_type: str) -> TextModel:
    tied = config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", True))
    if model_type in ASSISTANTS:
        return gemma_text(text, tied=tied, reads_target=True)
    if architecture.startswith("Gemma") and not architecture.startswith("Gemma4"):
        raise CheckpointError(f"{config.where}: {architecture} is another model than Gemma 4")
    if text.text("model_type", model_type).startswith("gemma4") or architecture.startswith("Gemma4"):
        return gemma_text(text, tied=tied)
    if _method(config, architecture, model_type) is None:
        kind = architecture or model_type or "an unnamed architecture"
        raise CheckpointError(f"{config.where}: {kind} is neither a Gemma 4 nor a draft for one")
    return plain_text(text, tied=config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False)))


def _modalities(config: Fields, architecture: str) -> frozenset[str]:
    """Return the modalities that vLLM serves; an encoder counts only if the architecture uses it."""
    if "ForConditionalGeneration" not in architecture:
        return frozenset({"text"})
    if "vision_config" in config:
        seen = {"image", "video"}
    else:
        seen = set()
    heard = {"audio"} if "audio_config" in config else set()
    return frozenset({"text"} | seen | heard)


def _method(config: Fields, architecture: str, model_type: str) -> str | None:
    """Return `method` of vLLM's speculative config for a checkpoint that can only draft; None for a whole model."""
    named = config.text("speculators_model_type", "")
    if named:
        return _SPECULATORS.get(named, named)
    if model_type in ASSISTANTS:
        return "mtp"
    for mark, method in (("Eagle3", "eagle3"), ("DFlash", "dflash"), ("DSpark", "dspark"), ("Eagle", "eagle")):
        if mark in architecture:
            return method
    return None


def _speculator(config: Fields, text: Fields, architecture: str, model_type: str) -> Speculator | None:
    method = _method(config, architecture, model_type)
    if method is None:
        return None
    speculators = config.section("speculators_config") or Fields({}, config.where)
    verifier = speculators.section("verifier") or Fields({}, speculators.where)
    hidden = config.maybe_count("target_hidden_size") or config.maybe_count("backbone_hidden_size")
    if not hidden and method == "eagle3":  # such a head is as wide as its target
        hidden = text.maybe_count("hidden_size")
    return Speculator(
        method=method,
        target_hidden_size=hidden,
        draft_vocab_size=config.maybe_count("draft_vocab_size"),
        target_layers=_target_layers(config),
        scored_tokens=_scored_tokens(config, text),
        num_speculative_tokens=_promised_tokens(speculators),
        verifier=verifier.maybe_text("name_or_path"),
        parallel=config.text("speculators_model_type", "") == "peagle",
    )


def _target_layers(config: Fields) -> tuple[int, ...]:
    """Return the target's layers whose states a head reads: each family of heads has a key of its own."""
    nested = config.section("eagle_config") or config.section("dflash_config") or config
    of_eagle = "eagle_aux_hidden_state_layer_ids"
    return (
        config.counts(of_eagle)
        or config.counts("aux_hidden_state_layer_ids")
        or nested.counts(of_eagle)
        or nested.counts("target_layer_ids")
    )


def _scored_tokens(config: Fields, text: Fields) -> int | None:
    """Return how many tokens the draft scores, as transformers' Gemma4AssistantMaskedEmbedder computes it.

    vLLM's Gemma4MTPMaskedEmbedder has the same defaults. Raise CheckpointError if the centroids do not divide the
    vocabulary evenly.
    """
    if not config.flag("use_ordered_embeddings"):
        return None
    centroids = config.count("num_centroids", 2048, least=1)
    nearest = config.count("centroid_intermediate_top_k", 32, least=1)
    words = text.count("vocab_size", 262_144, least=1)
    if words % centroids or nearest > centroids:
        raise CheckpointError(
            f"{config.where}: a vocabulary of {words} tokens does not fit {nearest} of {centroids} centroids"
        )
    return nearest * (words // centroids)


def _promised_tokens(own: Fields) -> int | None:
    first = next(iter(own.items("proposal_methods")), None)
    if isinstance(first, dict):
        return Fields(first, own.where).maybe_count("speculative_tokens")
    return None


def _token_ids(config: Fields, text: Fields) -> dict[str, int]:
    """Return the ids of the control tokens; the first one if there are several ends of sequence."""
    tokens: dict[str, int] = {}
    for name in _TOKEN_IDS:
        for fields in (config, text):
            value = fields.content.get(f"{name}_token_id", fields.content.get(f"{name}_token_index"))
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                tokens.setdefault(f"{name}_token", value)
    return tokens
