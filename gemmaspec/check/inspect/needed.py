"""Modules that vLLM builds from config.json and that a checkpoint therefore must store.

As vLLM's classes build them: Gemma4DecoderLayer, Gemma4Router and Gemma4MTP (gemma4.py, gemma4_mtp.py, 0.32.0), and
`fc` of the heads (llama_eagle3.py, 0.32.0)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gemmaspec.check.inspect.decoder import how_many, of_layers, some, stem_of
from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint, Layer, TextModel
from gemmaspec.core.checkpoint.stored import part_of
from gemmaspec.core.finding import Finding

_NORMS: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_OF_EXPERTS: Final = (
    *("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"),
    *("router.proj", "router.scale", "router.per_expert_scale", "experts"),
)
_PER_LAYER: Final = ("per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm")
_JOINED: Final = {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.qkv_proj"),
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), "mlp.gate_up_proj"),
}
"""Module → the one that holds it where an exporter joined several."""


def missing_modules(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield what the checkpoint does not store: modules of the decoder or the head, and single experts."""
    if checkpoint.speculator and checkpoint.speculator.method != "mtp":
        lacking = list(_of_head(checkpoint))
    else:
        lacking = [*_single(checkpoint), *_of_layers(checkpoint)]
    if lacking:
        message = f"{how_many(len(lacking), 'module')} not stored: {some(lacking)}"
        yield finding("parts-missing", message, ref=checkpoint.ref)
    yield from _experts(checkpoint)
    yield from _routing(checkpoint.text)
    yield from _vocabulary_map(checkpoint)


def _single(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield which of the modules outside of the layers are not stored."""
    stored: set[str] = set()
    for tensor in checkpoint.tensors:
        if part_of(tensor.name) not in ("decoder layers", "vision", "audio"):
            stored.update(tensor.name.split("."))
    for name in _outside(checkpoint):
        if name not in stored:
            yield name
    if checkpoint.speculator and not stored & {"embed_tokens", "lm_head"}:
        yield "embed_tokens"  # an assistant's output head is its own, and may be tied to its own table


def _outside(checkpoint: Checkpoint) -> Iterator[str]:
    text = checkpoint.text
    yield "norm"
    if checkpoint.speculator:
        yield from ("pre_projection", "post_projection")
        if checkpoint.speculator.scored_tokens:
            yield from ("centroids", "token_ordering")
        return
    yield "embed_tokens"
    if not text.tied_embeddings:
        yield "lm_head"  # vllm/model_executor/models/gemma4.py makes one of its own
    if text.hidden_size_per_layer_input:
        yield from ("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")


def _of_layers(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield modules of single layers; a layer of which nothing is stored is another finding."""
    layers = checkpoint.text.layers
    has: dict[int, set[str]] = {}
    for index, name, _ in of_layers(checkpoint):
        if index < len(layers):
            has.setdefault(index, set()).update((name, stem_of(name), name.partition(".")[0]))
    for index, stored in sorted(has.items()):
        for module in _of_layer(checkpoint.text, layers[index]):
            if module not in stored and _JOINED.get(module) not in stored:
                yield f"layers.{index}.{module}"


def _of_layer(text: TextModel, layer: Layer) -> Iterator[str]:
    yield from ("self_attn.q_proj", "self_attn.o_proj", "self_attn.q_norm")
    if layer.shares_with is None and not layer.shares_target:
        yield from ("self_attn.k_proj", "self_attn.k_norm")
        if not layer.keys_are_values:
            yield "self_attn.v_proj"
    yield from ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", *_NORMS)
    if text.hidden_size_per_layer_input:
        yield from _PER_LAYER
    if text.experts:
        yield from _OF_EXPERTS


def _of_head(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the projection of the target's hidden states, where a head names the layers that it reads."""
    speculator = checkpoint.speculator
    reads = bool(speculator and speculator.target_layers)
    if reads and not any("fc" in tensor.name.split(".") for tensor in checkpoint.tensors):
        yield "fc"


def _vocabulary_map(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield a head that proposes a part of the vocabulary and does not store which."""
    speculator, words = checkpoint.speculator, checkpoint.text.vocab_size
    few = speculator.draft_vocab_size if speculator else None
    if few and few < words and not any(tensor.name.endswith("d2t") for tensor in checkpoint.tensors):
        yield finding(
            "vocabulary-map-missing", f"it proposes {few} of {words} tokens, and no tensor d2t says which", few=few
        )


def _experts(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield layers that store other experts, one by one, than config.json has."""
    text = checkpoint.text
    for index, numbers in sorted(_numbers(checkpoint).items()):
        lacking = sorted(set(range(text.experts)) - numbers)
        beyond = sorted(number for number in numbers if number >= text.experts)
        if lacking or beyond:
            if lacking:
                shown = f"expert {lacking[0]} is the first that is missing"
            else:
                shown = f"expert {beyond[0]} is beyond"
            yield finding(
                "experts-differ",
                f"config.json has {text.experts} experts, and layer {index} stores {len(numbers)}: {shown}",
                ref=checkpoint.ref,
            )
            return


def _numbers(checkpoint: Checkpoint) -> Mapping[int, set[int]]:
    """Return layer → the numbers of its experts, where they are stored one by one."""
    numbers: dict[int, set[int]] = {}
    for index, name, _ in of_layers(checkpoint):
        words = name.split(".")
        if words[0] == "experts" and len(words) > 2 and words[1].isdecimal() and len(words[1]) < 6:
            numbers.setdefault(index, set()).add(int(words[1]))
    return numbers


def _routing(text: TextModel) -> Iterator[Finding]:
    """Yield a number of experts for each token that a mixture of so many cannot give."""
    if text.experts and not 1 <= text.experts_per_token <= text.experts:
        yield finding(
            "experts-per-token",
            f"config.json sends each token to {text.experts_per_token} of {text.experts} experts (top_k_experts)",
        )
