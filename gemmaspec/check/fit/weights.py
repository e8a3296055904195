"""The size of the weights once vLLM has loaded them, and the part that a step reads."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from packaging.version import Version

from gemmaspec.core.checkpoint.model import Checkpoint, Layer, Tensor, TextModel
from gemmaspec.core.checkpoint.ranks import on_each
from gemmaspec.core.checkpoint.stored import part_of
from gemmaspec.core.resolved.media import TOWERS

_LAYER: Final = re.compile(r"\blayers\.([0-9]+)\.")
_KEYS: Final = ".self_attn.k_proj."
_KEYS_AND_VALUES: Final = (".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.")
_EXPERTS: Final = re.compile(r"\.experts\b")
_SIXTEEN_BITS: Final = ("BF16", "F16")


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One model in the memory of one GPU, in bytes."""

    decoder: int
    """Decoder layers without routed experts."""
    experts: int
    """Routed experts of all layers."""
    embeddings: int
    """Input embeddings; a tied output head is the same table."""
    head: int
    """A separate output head."""
    per_layer: int
    """Per-layer embeddings of E2B and E4B: one row of each layer is read for a token."""
    towers: int
    """Image and audio encoders."""
    rotary: int
    """Tables of the rotary embedding, one for each kind of attention: a row for every position of the model's own
    longest context, however long `max_model_len` is."""
    experts_share: float
    """Share of the experts that one token uses."""
    head_of_a_token: int | None = None
    """Bytes of the output head that one token reads, if centroids choose a few of its rows; None for all of it."""
    listed: int | None = None
    """Bytes of the head's rows of the ids that a list names (`draft.ids`); None for all of them."""

    @property
    def total(self) -> int:
        """Total bytes."""
        if self.listed is None:
            vocabulary = self.embeddings + self.head
        else:
            vocabulary = self.listed
        return self.decoder + self.experts + vocabulary + self.per_layer + self.towers + self.rotary

    def read(self, tokens: int, *, alike: bool = False) -> int:
        """Return the bytes that one pass over `tokens` tokens reads: every layer, the head, and all used experts.

        With n experts of which a token uses m, t tokens use 1 - (1 - m/n)^t of them, if they choose independently.
        Tokens of one text do not; `alike` computes with all of them choosing the same experts, which is the least.
        """
        if alike:
            used = self.experts_share
        else:
            used = 1 - (1 - self.experts_share) ** tokens
        head = self.head or self.embeddings
        if self.listed is not None:
            head = self.listed
        if self.head_of_a_token is not None:
            head = min(head, self.head_of_a_token * (1 if alike else tokens))
        return self.decoder + head + round(self.experts * used)


def weights_of(
    model: Checkpoint,
    *,
    vllm: str,
    towers: Collection[str] = TOWERS,
    fp8_online: bool = False,
    gpus: int = 1,
    stage: range | None = None,
) -> Weights:
    """Return a checkpoint's weights as that release keeps them on one of so many GPUs.

    `towers`: the encoders that it loads. `fp8_online`: quantized to FP8 while loading, one byte for each number of a
    linear layer. `stage`: the decoder layers of a pipeline stage; None for all. Embeddings, encoders and norms are on
    every stage (Gemma4Model in vllm/model_executor/models/gemma4.py, every release).
    """
    text = model.text
    sizes = dict.fromkeys(("decoder", "experts", "embeddings", "lm_head", "per-layer", "towers"), 0)
    for (place, part), nbytes in _by_division(
        _of_stage(model, _kept(model, vllm, towers), stage), fp8_online=fp8_online
    ).items():
        sizes[place] += math.ceil(nbytes * on_each(text, part, gpus))
    if text.experts:
        share = text.experts_per_token / text.experts
    else:
        share = 0.0
    if text.tied_embeddings:
        head = 0
    else:
        head = sizes["lm_head"]
    return Weights(
        decoder=sizes["decoder"],
        experts=sizes["experts"],
        embeddings=sizes["embeddings"],
        head=head,
        per_layer=sizes["per-layer"],
        towers=sizes["towers"],
        rotary=rotary_tables(text, stage),
        experts_share=share,
        head_of_a_token=_head_of_a_token(model, sizes["embeddings"]),
    )


def _of_stage(
    model: Checkpoint, tensors: Iterable[tuple[Tensor, int]], stage: range | None
) -> Iterator[tuple[Tensor, int]]:
    """Yield the tensors that a stage has: all that are no decoder layer, and those of its layers."""
    for tensor, nbytes in tensors:
        index = _layer_index(model, tensor)
        if stage is None or index is None or index in stage:
            yield tensor, nbytes


def _by_division(tensors: Iterable[tuple[Tensor, int]], *, fp8_online: bool) -> dict[tuple[str, str], int]:
    """Return the bytes of tensors by their place in the model and by how GPUs share them."""
    sizes: dict[tuple[str, str], int] = {}
    for tensor, nbytes in tensors:
        place = _place(tensor)
        divided = (place, _divided_as(tensor, place))
        if fp8_online and _linear(tensor, place):
            size = nbytes // 2
        else:
            size = nbytes
        sizes[divided] = sizes.get(divided, 0) + size
    return sizes


def _head_of_a_token(model: Checkpoint, table: int) -> int | None:
    """Return the bytes that a token reads of a small assistant's head: the rows of the best centroids.

    Gemma4MTPMaskedEmbedder in vllm/model_executor/models/gemma4_mtp.py, from 0.21.0, with its defaults.
    """
    if model.config.get("use_ordered_embeddings") is not True:
        return None
    centroids, best = model.config.get("num_centroids", 2048), model.config.get("centroid_intermediate_top_k", 32)
    if not isinstance(centroids, int) or not isinstance(best, int) or not 0 < best <= centroids:
        return None
    return table * best // centroids


def only_listed(weights: Weights, model: Checkpoint, count: int) -> Weights:
    """Return an assistant's weights with a head of so many rows, as the patch mtp-draft-ids makes it.

    Its own embeddings are loaded, and go when it gets the target's.
    """
    whole = weights.head or weights.embeddings
    return replace(weights, listed=whole * count // max(model.text.vocab_size, 1))


def rotary_key(text: TextModel) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return what decides a model's rotary tables: a draft with the same ones shares its target's (get_rope)."""
    widths = {layer.kind: layer.head_dim for layer in text.layers}
    return text.max_position_embeddings, tuple(sorted(widths.items()))


def rotary_tables(text: TextModel, stage: range | None = None) -> int:
    """Return the bytes of cosines and sines in bfloat16, shared by the layers of one kind (get_rope's cache)."""
    if stage is not None:
        text = replace(text, layers=text.layers[stage.start : stage.stop])
    positions, widths = rotary_key(text)
    return 2 * positions * sum(width for _, width in widths)


def _kept(model: Checkpoint, vllm: str, towers: Collection[str]) -> Iterator[tuple[Tensor, int]]:
    """Yield the tensors that stay in memory, with their size.

    vllm/model_executor/models/gemma4.py: where keys are values, the key projection is loaded into both places. Keys
    and values of layers that share another's cache are loaded up to 0.29, and left out from 0.30.0 on.
    """
    leaves_out = Version(vllm) >= Version("0.30.0")
    casts = model.dtype in ("bfloat16", "float16")
    for tensor in model.tensors:
        part = part_of(tensor.name)
        if part in TOWERS and part not in towers:
            continue
        layer = _decoder_layer(model, tensor)
        if casts and tensor.dtype == "F32" and len(tensor.shape) > 1 and tensor.name.endswith("weight"):
            yield tensor, tensor.nbytes // 2  # copied into a parameter of the model's own type
        elif layer is None:
            yield tensor, tensor.nbytes
        elif leaves_out and layer.shares_with is not None and any(part in tensor.name for part in _KEYS_AND_VALUES):
            continue
        elif layer.keys_are_values and _KEYS in tensor.name:
            yield tensor, 2 * tensor.nbytes
        else:
            yield tensor, tensor.nbytes


def _decoder_layer(model: Checkpoint, tensor: Tensor) -> Layer | None:
    index = _layer_index(model, tensor)
    if index is None:
        return None
    return model.text.layers[index]


def _layer_index(model: Checkpoint, tensor: Tensor) -> int | None:
    if part_of(tensor.name) != "decoder layers":
        return None
    match = _LAYER.search(tensor.name)
    index = int(match[1]) if match else -1
    if 0 <= index < len(model.text.layers):
        return index
    return None


def _place(tensor: Tensor) -> str:
    part = part_of(tensor.name)
    if part in TOWERS:
        return "towers"
    if part == "per-layer embeddings":
        return "per-layer"
    if part in ("embeddings", "lm_head"):
        return part
    if _EXPERTS.search(tensor.name):
        return "experts"
    return "decoder"


_MATRICES: Final = ((".q_proj.", "queries"), (".o_proj.", "output"), (".mlp.", "mlp"))
"""Words in a tensor's name, and the part of a layer that vLLM divides in its own way (core/checkpoint/ranks.py)."""


def _divided_as(tensor: Tensor, place: str) -> str:
    """Return the part by which vLLM divides a tensor among GPUs."""
    if place != "decoder":
        return place
    if ".self_attn.k_proj." in tensor.name or ".self_attn.v_proj." in tensor.name:
        return "keys"
    return next((part for word, part in _MATRICES if word in tensor.name), "whole")


def _linear(tensor: Tensor, place: str) -> bool:
    """Return whether quantizing while loading changes it: 16-bit matrices of the decoder."""
    return place in ("decoder", "experts") and len(tensor.shape) > 1 and tensor.dtype in _SIXTEEN_BITS
