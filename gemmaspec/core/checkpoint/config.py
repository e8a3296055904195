"""config.json: the kind of checkpoint, its decoder, and, for a draft, the target that it was made for.

The head of a model card: YAML between two lines of three hyphens.

The decoder's layers, from a text configuration in any form that a transformers release writes.

Gemma 4 (models/gemma4/configuration_gemma4.py): up to transformers 5.15 full-attention layers differ by
`global_head_dim` and `num_global_key_value_heads`; from 5.16 on by `per_layer_config`, layer by layer, with the rest in
the plain attributes. Other families are read only as drafts (EAGLE-3, DFlash), with their common attributes.

The facts in a tokenizer's files on which two checkpoints must agree.

tokenizer.json of a Gemma 4 has about 32 MB. Its control tokens are at the beginning (`added_tokens`, before `model`),
so the first part of the file suffices for them. sha256 shows whether two whole files are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.checkpoint.fields import Fields, load_object, printable
from gemmaspec.core.checkpoint.parts import Layer, LayerKind, Speculator, TextModel
from gemmaspec.core.errors import CheckpointError
from gemmaspec.core.strict_yaml import parse

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def base_models(card: str) -> tuple[str, ...]:
    """Return `base_model` of a README.md; empty if its head is missing or unreadable."""
    match = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    if not match:
        return ()
    try:
        data = parse(match[1], file="README.md", error=CheckpointError).data
    except CheckpointError:
        return ()
    return hub_ids(data.get("base_model") if isinstance(data, dict) else None)


def hub_ids(value: object) -> tuple[str, ...]:
    """Return the Hub ids in one id or a list of them; invalid ones are skipped."""
    many = value if isinstance(value, list) else [value]
    return tuple(id_ for id_ in many[:16] if isinstance(id_, str) and _HUB_ID.fullmatch(id_))


_KINDS: Final[dict[str, LayerKind]] = {"sliding_attention": "sliding", "full_attention": "full"}
_UNIFIED: Final = {"window": 1024, "context": 262_144, "per_layer": 0}
_OTHERS: Final = {"window": 512, "context": 131_072, "per_layer": 256}
"""transformers' defaults for gemma4_unified_text, and for gemma4_text."""
_PATTERN: Final = 6
"""Without `layer_types`, every sixth layer has full attention."""


def gemma_text(text: Fields, *, tied: bool, reads_target: bool = False) -> TextModel:
    """Return the decoder of a Gemma 4 checkpoint; missing values have transformers' defaults.

    `reads_target` for a Gemma 4 assistant, whose layers all read the target's cache. Raise CheckpointError for
    impossible values.
    """
    total = _layer_count(text, 30)
    kinds = _gemma_kinds(text, total)
    shared = total if reads_target else text.count("num_kv_shared_layers", 0)
    if shared > total:
        raise CheckpointError(f"{text.where}: num_kv_shared_layers is {shared}, but there are only {total} layers")
    moe = text.flag("enable_moe_block")
    defaults = _UNIFIED if "unified" in text.text("model_type", "") else _OTHERS
    per_layer = text.count("hidden_size_per_layer_input", defaults["per_layer"])
    overrides, nothing = _overrides(text, total), Fields({}, text.where)
    window = _window(text, defaults["window"])
    layers = [_gemma_layer(text, overrides.get(index, nothing), kind, window) for index, kind in enumerate(kinds)]
    return TextModel(
        layers=_with_sharing(layers, shared, reads_target=reads_target),
        hidden_size=text.count("hidden_size", 2304, least=1),
        intermediate_size=text.count("intermediate_size", 9216, least=1),
        vocab_size=text.count("vocab_size", 262_144, least=1),
        max_position_embeddings=text.count("max_position_embeddings", defaults["context"], least=1),
        hidden_size_per_layer_input=per_layer,
        vocab_size_per_layer_input=text.count("vocab_size_per_layer_input", 262_144) if per_layer else 0,
        experts=text.count("num_experts", 0) if moe else 0,
        experts_per_token=text.count("top_k_experts", 0) if moe else 0,
        tied_embeddings=tied,
        double_wide=text.flag("use_double_wide_mlp"),
    )


def plain_text(text: Fields, *, tied: bool) -> TextModel:
    """Return the decoder of another family: one head size, with windows as in `layer_types`.

    Raise CheckpointError if invalid.
    """
    total = _layer_count(text, None)
    heads, hidden = text.count("num_attention_heads", least=1), text.count("hidden_size", least=1)
    named = text.texts("layer_types")
    window = text.maybe_count("sliding_window")
    kinds = [_KINDS.get(name, "full") for name in named] or ["full"] * total
    if len(kinds) != total:
        raise CheckpointError(f"{text.where}: layer_types has {len(kinds)} entries for {total} layers")
    layer: dict[str, Any] = {
        "heads": heads,
        "kv_heads": text.count("num_key_value_heads", heads, least=1),
        "head_dim": text.count("head_dim", max(hidden // heads, 1), least=1),
    }
    return TextModel(
        layers=tuple(Layer(kind=kind, window=window if kind == "sliding" else None, **layer) for kind in kinds),
        hidden_size=hidden,
        intermediate_size=text.count("intermediate_size", 4 * hidden, least=1),
        vocab_size=text.count("vocab_size", least=1),
        max_position_embeddings=text.count("max_position_embeddings", 2048, least=1),
        tied_embeddings=tied,
    )


def _window(text: Fields, default: int) -> int:
    """Return the window. A null is not the default: transformers' Gemma4TextConfig wants a number (5.8 to 5.19)."""
    if text.content.get("sliding_window", default) is None:
        raise CheckpointError(f"{text.where}: sliding_window is null, but Gemma 4 has sliding layers")
    return text.count("sliding_window", default, least=1)


def _layer_count(text: Fields, default: int | None) -> int:
    total = text.count("num_hidden_layers", default, least=1)
    if total > 1024:
        raise CheckpointError(f"{text.where}: num_hidden_layers is {total}, more than the limit of 1024")
    return total


def _gemma_kinds(text: Fields, total: int) -> list[LayerKind]:
    """Return the kind of each layer. The last always has full attention, as in transformers and vLLM."""
    names = list(text.texts("layer_types"))
    if not names:
        names = [
            "full_attention" if index % _PATTERN == _PATTERN - 1 else "sliding_attention" for index in range(total)
        ]
    if len(names) != total:
        raise CheckpointError(f"{text.where}: layer_types has {len(names)} entries for {total} layers")
    unknown = next((name for name in names if name not in _KINDS), None)
    if unknown:
        raise CheckpointError(f"{text.where}: layer_types contains {unknown!r}, which Gemma 4 does not have")
    return [*(_KINDS[name] for name in names[:-1]), "full"]


def _gemma_layer(text: Fields, own: Fields, kind: LayerKind, window: int) -> Layer:
    """Return one layer; `own` holds the values in which it differs from the rest."""
    heads_in_common = text.flag("attention_k_eq_v")
    head_dim, kv_heads = text.count("head_dim", 256, least=1), text.count("num_key_value_heads", 4, least=1)
    if kind == "full" and "per_layer_config" not in text:
        head_dim = text.count("global_head_dim", 512, least=1)
        kv_heads = text.count("num_global_key_value_heads", kv_heads, least=1) if heads_in_common else kv_heads
    return Layer(
        kind=kind,
        heads=own.count("num_attention_heads", text.count("num_attention_heads", 8, least=1), least=1),
        kv_heads=own.count("num_key_value_heads", kv_heads, least=1),
        head_dim=own.count("head_dim", head_dim, least=1),
        window=own.count("sliding_window", window, least=1) if kind == "sliding" else None,
        keys_are_values=heads_in_common and kind == "full",
    )


def _overrides(text: Fields, total: int) -> dict[int, Fields]:
    """Return the values of single layers in `per_layer_config`. Its keys are numbers, with or without leading zeros."""
    table = text.section("per_layer_config")
    if table is None:
        return {}
    wrong = next((key for key in table.content if not key.isdecimal() or len(key) > 6 or int(key) >= total), None)
    if wrong is not None:
        raise CheckpointError(f"{table.where}: {printable(wrong, 40)!r} is not one of the {total} layers")
    return {int(key): layer for key in table.content if (layer := table.section(key))}


def _with_sharing(layers: list[Layer], shared: int, *, reads_target: bool) -> tuple[Layer, ...]:
    """Return the layers; the last `shared` ones read the cache of the last layer of their kind before them."""
    from dataclasses import replace

    if reads_target:
        return tuple(replace(layer, shares_target=True) for layer in layers)
    first = len(layers) - shared
    owner = {layer.kind: index for index, layer in enumerate(layers[:first])}
    return tuple(
        replace(layer, shares_with=owner.get(layer.kind)) if index >= first else layer
        for index, layer in enumerate(layers)
    )


FIRST_PIECE: Final = 64 * 1024
"""Bytes of tokenizer.json to read for its control tokens."""


def added_tokens(piece: bytes) -> dict[str, int]:
    """Return control token → id from the beginning of a tokenizer.json, for every complete entry."""
    text = piece.decode("utf-8", errors="replace")
    start = text.find('"added_tokens"')
    start = text.find("[", start) if start >= 0 else -1
    entries = _whole_entries(text, start + 1) if start >= 0 else iter(())
    return {entry["content"]: entry["id"] for entry in entries if entry.get("special") is True and _is_token(entry)}


def named_tokens(config: Fields, ids: Mapping[str, int]) -> dict[str, int]:
    """Return control token → id from tokenizer_config.json: its own table, else its names with the ids of config.json.

    A name without a token stands for itself.
    """
    table = config.section("added_tokens_decoder")
    if table:
        entries = [{**entry, "id": int(key)} for key, entry in table.content.items() if _is_listed(key, entry)]
        return {entry["content"]: entry["id"] for entry in entries if entry.get("special") and _is_token(entry)}
    return {_token(config.content.get(name)) or name: number for name, number in ids.items()}


def words(raw: bytes, where: str) -> dict[str, int]:
    """Return token → id for a whole tokenizer.json. Raise CheckpointError if it is invalid."""
    model = load_object(raw, where).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # a Unigram model has pairs of token and score
        vocabulary = {str(entry[0]): at for at, entry in enumerate(vocabulary) if isinstance(entry, list) and entry}
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise CheckpointError(f"{where}: the vocabulary is missing")
    return vocabulary


def _whole_entries(text: str, at: int) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    while True:
        at = _next_value(text, at)
        if at >= len(text) or text[at] != "{":
            return
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # truncated, or not JSON
            return
        yield entry


def _next_value(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _is_listed(key: str, entry: object) -> bool:
    return key.isdecimal() and len(key) < 10 and isinstance(entry, dict)


def _is_token(entry: Mapping[str, Any]) -> bool:
    content, number = entry.get("content"), entry.get("id")
    return isinstance(content, str) and 0 < len(content) <= 100 and isinstance(number, int)


def _token(value: object) -> str | None:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and 0 < len(value) <= 100 else None


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
    return Described(
        architecture=architecture or model_type or "unknown",
        model_type=model_type or config.text("speculators_model_type", "unknown"),
        dtype=config.text("dtype", config.text("torch_dtype", text.text("dtype", text.text("torch_dtype", "unknown")))),
        text=_text(config, text, architecture, model_type),
        modalities=_modalities(config, architecture or _USUAL.get(model_type, "")),
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
    seen = {"image", "video"} if "vision_config" in config else set()
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
    layers = "eagle_aux_hidden_state_layer_ids"
    nested = config.section("eagle_config") or config.section("dflash_config") or config
    speculators = config.section("speculators_config") or Fields({}, config.where)
    hidden = config.maybe_count("target_hidden_size") or config.maybe_count("backbone_hidden_size")
    return Speculator(
        method=method,
        target_hidden_size=hidden or (text.maybe_count("hidden_size") if method == "eagle3" else None),
        draft_vocab_size=config.maybe_count("draft_vocab_size"),
        target_layers=config.counts(layers)
        or config.counts("aux_hidden_state_layer_ids")
        or nested.counts(layers)
        or nested.counts("target_layer_ids"),
        scored_tokens=_scored_tokens(config, text),
        num_speculative_tokens=_promised_tokens(speculators),
        verifier=(speculators.section("verifier") or Fields({}, speculators.where)).maybe_text("name_or_path"),
        parallel=config.text("speculators_model_type", "") == "peagle",
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
    return Fields(first, own.where).maybe_count("speculative_tokens") if isinstance(first, dict) else None


def _token_ids(config: Fields, text: Fields) -> dict[str, int]:
    """Return the ids of the control tokens; the first one if there are several ends of sequence."""
    tokens: dict[str, int] = {}
    for name in _TOKEN_IDS:
        for fields in (config, text):
            value = fields.content.get(f"{name}_token_id", fields.content.get(f"{name}_token_index"))
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                tokens.setdefault(f"{name}_token", value)
    return tokens
