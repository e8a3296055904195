"""The shapes of stored tensors, against those of the parameters that vLLM makes from config.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.inspect.decoder import how_many, of_layers
from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint, Layer, Speculator, Tensor, TextModel
from gemmaspec.core.checkpoint.stored import part_of
from gemmaspec.core.finding import Finding

Shape = tuple[int, ...]
_FULL: Final = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "I64")
"""Types that store one number per element, so that a tensor's shape is its matrix's."""


def differing_shapes(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield the tensors whose shape differs from config.json, as one finding that names the first."""
    wrong = list(_wrong(checkpoint))
    if wrong:
        tensor, wanted = wrong[0]
        yield finding(
            "shapes-differ",
            f"{how_many(len(wrong), 'tensor')} of other shapes than config.json declares: {tensor.name} has "
            f"{_written(tensor.shape)}, but {_written(wanted)} is expected",
        )


def _wrong(checkpoint: Checkpoint) -> Iterator[tuple[Tensor, Shape]]:
    for tensor, wanted in _expected(checkpoint):
        shape = _unpacked(checkpoint, tensor)
        if shape and wanted and shape != wanted:
            yield tensor, wanted


def _expected(checkpoint: Checkpoint) -> Iterator[tuple[Tensor, Shape | None]]:
    """Yield tensors with the shape that each must have, where that is known."""
    speculator, text = checkpoint.speculator, checkpoint.text
    for tensor in checkpoint.tensors:
        if part_of(tensor.name) not in ("decoder layers", "vision", "audio"):
            yield tensor, _outside(tensor.name.removesuffix("_packed"), text, speculator)
    if speculator and speculator.method != "mtp":
        return  # the layers of other heads have inputs of their own
    for index, name, tensor in of_layers(checkpoint):
        if index < len(text.layers):
            yield tensor, _of_layer(name.removesuffix("_packed"), text, text.layers[index])


def _unpacked(checkpoint: Checkpoint, tensor: Tensor) -> Shape | None:
    """Return the shape of the matrix that a tensor stores; None where its type does not tell."""
    if tensor.dtype == "U8" and checkpoint.quantization and tensor.shape:
        return (*tensor.shape[:-1], 2 * tensor.shape[-1])
    if tensor.dtype in _FULL:
        return tensor.shape
    return None


def _outside(name: str, text: TextModel, speculator: Speculator | None) -> Shape | None:
    """Return the shape of a tensor outside of the layers: tables, heads, and what an assistant or a head adds."""
    if name.endswith("embed_tokens.weight"):
        return text.vocab_size, text.hidden_size
    if name.endswith("embed_tokens_per_layer.weight"):
        return text.vocab_size_per_layer_input, text.hidden_size_per_layer_input * len(text.layers)
    if name.endswith("per_layer_model_projection.weight"):
        return text.hidden_size_per_layer_input * len(text.layers), text.hidden_size
    if speculator:
        return _of_draft(name, text, speculator)
    if name == "lm_head.weight" and not text.tied_embeddings:
        return text.vocab_size, text.hidden_size
    return None


def _of_draft(name: str, text: TextModel, speculator: Speculator) -> Shape | None:
    backbone, words = speculator.target_hidden_size, speculator.draft_vocab_size or text.vocab_size
    if name == "lm_head.weight":
        return words, text.hidden_size
    if name == "d2t":
        return (words,)
    if name == "pre_projection.weight" and backbone:
        return text.hidden_size, 2 * backbone
    if name == "post_projection.weight" and backbone:
        return backbone, text.hidden_size
    if name == "masked_embedding.token_ordering":
        return (text.vocab_size,)
    if name == "fc.weight" and backbone and speculator.target_layers:
        return text.hidden_size, backbone * len(speculator.target_layers)
    return None


def _of_layer(name: str, text: TextModel, layer: Layer) -> Shape | None:
    """Return the shape of a tensor of one layer; None for one that has no fixed one."""
    module, _, leaf = name.rpartition(".")
    if module.startswith("experts") or name.startswith(("experts.", "router.")):
        return _of_mixture(name, text)
    if leaf != "weight":
        return None
    queries, keys, inner = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, text.inner(layer)
    per_layer, hidden = text.hidden_size_per_layer_input, text.hidden_size
    attention: dict[str, Shape] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.q_norm": (layer.head_dim,),
        "self_attn.k_norm": (layer.head_dim,),
    }
    others: dict[str, Shape] = {
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "per_layer_input_gate": (per_layer, hidden),
        "per_layer_projection": (hidden, per_layer),
    }
    if "layernorm" in module or module == "post_per_layer_input_norm":
        return (hidden,)
    return (attention | others).get(module)


def _of_mixture(name: str, text: TextModel) -> Shape | None:
    """Return the shape of a tensor of the router, of all experts in one, or of one expert."""
    experts, hidden, inner = text.experts, text.hidden_size, text.expert_inner
    joined: dict[str, Shape] = {
        "router.proj.weight": (experts, hidden),
        "router.scale": (hidden,),
        "router.per_expert_scale": (experts,),
        "experts.gate_up_proj": (experts, 2 * inner, hidden),
        "experts.down_proj": (experts, hidden, inner),
    }
    if name in joined:
        return joined[name]
    if name.endswith((".gate_proj.weight", ".up_proj.weight")):
        return inner, hidden
    if name.endswith(".down_proj.weight"):
        return (hidden, inner)
    return None


def _written(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"
