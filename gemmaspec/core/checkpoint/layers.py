"""The decoder's layers, from a text configuration in any form that a transformers release writes.

Gemma 4 (models/gemma4/configuration_gemma4.py): up to transformers 5.15 full-attention layers differ by
`global_head_dim` and `num_global_key_value_heads`; from 5.16 on by `per_layer_config`, layer by layer, with the rest in
the plain attributes. Other families are read only as drafts (EAGLE-3, DFlash), with their common attributes.
"""

from __future__ import annotations

from typing import Any, Final

from gemmaspec.core.checkpoint.fields import Fields, printable
from gemmaspec.core.checkpoint.model import Layer, LayerKind, TextModel
from gemmaspec.core.errors import CheckpointError

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
    if reads_target:
        shared = total
    else:
        shared = text.count("num_kv_shared_layers", 0)
    if shared > total:
        raise CheckpointError(f"{text.where}: num_kv_shared_layers is {shared}, but there are only {total} layers")
    if "unified" in text.text("model_type", ""):
        defaults = _UNIFIED
    else:
        defaults = _OTHERS
    overrides, nothing = _overrides(text, total), Fields({}, text.where)
    window = _window(text, defaults["window"])
    layers = [_gemma_layer(text, overrides.get(index, nothing), kind, window) for index, kind in enumerate(kinds)]
    return TextModel(
        layers=_with_sharing(layers, shared, reads_target=reads_target),
        hidden_size=text.count("hidden_size", 2304, least=1),
        intermediate_size=text.count("intermediate_size", 9216, least=1),
        vocab_size=text.count("vocab_size", 262_144, least=1),
        max_position_embeddings=text.count("max_position_embeddings", defaults["context"], least=1),
        tied_embeddings=tied,
        double_wide=text.flag("use_double_wide_mlp"),
        **_embeddings_per_layer(text, defaults["per_layer"]),
        **_experts(text),
    )


def _embeddings_per_layer(text: Fields, default: int) -> dict[str, int]:
    """Return the sizes of the embeddings that each layer adds, as TextModel names them; none where no layer does."""
    width = text.count("hidden_size_per_layer_input", default)
    if width == 0:
        return {}
    words = text.count("vocab_size_per_layer_input", 262_144)
    return {"hidden_size_per_layer_input": width, "vocab_size_per_layer_input": words}


def _experts(text: Fields) -> dict[str, int]:
    """Return the sizes of a mixture of experts, as TextModel names them; none for a dense model."""
    if not text.flag("enable_moe_block"):
        return {}
    older = text.count("expert_intermediate_size", 0)
    return {
        "experts": text.count("num_experts", 0),
        "experts_per_token": text.count("top_k_experts", 0),
        "expert_inner": text.count("moe_intermediate_size", older),
    }


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
    layers = [Layer(kind=kind, window=window if kind == "sliding" else None, **layer) for kind in kinds]
    return TextModel(
        layers=tuple(layers),
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
        names = ["sliding_attention"] * total
        last_of_each_pattern = range(_PATTERN - 1, total, _PATTERN)
        for index in last_of_each_pattern:
            names[index] = "full_attention"
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
        if heads_in_common:
            kv_heads = text.count("num_global_key_value_heads", kv_heads, least=1)
    heads = text.count("num_attention_heads", 8, least=1)
    if kind == "sliding":
        own_window = own.count("sliding_window", window, least=1)
    else:
        own_window = None
    return Layer(
        kind=kind,
        heads=own.count("num_attention_heads", heads, least=1),
        kv_heads=own.count("num_key_value_heads", kv_heads, least=1),
        head_dim=own.count("head_dim", head_dim, least=1),
        window=own_window,
        keys_are_values=heads_in_common and kind == "full",
    )


def _overrides(text: Fields, total: int) -> dict[int, Fields]:
    """Return the values of single layers in `per_layer_config`. Its keys are numbers, with or without leading zeros."""
    table = text.section("per_layer_config")
    if table is None:
        return {}
    layers = {}
    for key in table.content:
        if not key.isdecimal() or len(key) > 6 or int(key) >= total:
            raise CheckpointError(f"{table.where}: {printable(key, 40)!r} is not one of the {total} layers")
        if layer := table.section(key):
            layers[int(key)] = layer
    return layers


def _with_sharing(layers: list[Layer], shared: int, *, reads_target: bool) -> tuple[Layer, ...]:
    """Return the layers; the last `shared` ones read the cache of the last layer of their kind before them."""
    from dataclasses import replace

    if reads_target:
        return tuple(replace(layer, shares_target=True) for layer in layers)
    first = len(layers) - shared
    owner = {layer.kind: index for index, layer in enumerate(layers[:first])}
    sharing = [replace(layer, shares_with=owner.get(layer.kind)) for layer in layers[first:]]
    return (*layers[:first], *sharing)
