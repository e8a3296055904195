"""Tensors of heads that draft a block at once: DFlash 2 and DSpark, in the speculators format. Pure.

Names and shapes are those that vLLM 0.32.0 reads: vllm/model_executor/models/qwen3_dflash.py, qwen3_dflash2.py and
qwen3_dspark.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from published.shapes import Shapes


def dflash2_tensors(config: Mapping[str, Any]) -> Shapes:
    """Return a DFlash 2 head without embeddings and output head: it uses the target's."""
    layer, shapes = config["transformer_layer_config"], _backbone(config)
    width, taps, rank = layer["hidden_size"], config["conv_kernel_size"], config["selector_rank"]
    for index in range(layer["num_hidden_layers"]):
        for part in ("attention_conv", "mlp_conv"):
            name = f"layers.{index}.{part}"
            _put(shapes, f"{name}.base_kernel", 2, taps, width)
            _put(shapes, f"{name}.kernel_projection.weight", 2 * taps * (width // config["conv_group_size"]), width)
    _put(shapes, "candidate_selector.hidden_projection.weight", rank, width)
    for part in ("predecessor", "successor"):
        _put(shapes, f"candidate_selector.{part}_codebook", layer["vocab_size"], rank)
    return shapes


def dspark_tensors(config: Mapping[str, Any]) -> Shapes:
    """Return a DSpark head with its own embeddings and small output head."""
    layer, shapes = config["transformer_layer_config"], _backbone(config)
    width, words, rank = layer["hidden_size"], config["draft_vocab_size"], config["markov_rank"]
    _put(shapes, "embed_tokens.weight", layer["vocab_size"], width)
    _put(shapes, "lm_head.weight", words, width)
    _put(shapes, "markov_head.markov_w1.weight", layer["vocab_size"], rank)
    _put(shapes, "markov_head.markov_w2.weight", words, rank)
    _put(shapes, "confidence_head.proj.weight", 1, width + rank)
    _put(shapes, "confidence_head.proj.bias", 1)
    shapes["d2t"] = ("I64", (words,))
    return shapes


def _backbone(config: Mapping[str, Any]) -> Shapes:
    layer, shapes = config["transformer_layer_config"], Shapes()
    width, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    queries, keys = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    _put(shapes, "fc.weight", width, len(config["aux_hidden_state_layer_ids"]) * width)
    for index in range(layer["num_hidden_layers"]):
        name = f"layers.{index}"
        for part, rows in (("q", queries), ("k", keys), ("v", keys)):
            _put(shapes, f"{name}.self_attn.{part}_proj.weight", rows, width)
        _put(shapes, f"{name}.self_attn.o_proj.weight", width, queries)
        for part in ("q_norm", "k_norm"):
            _put(shapes, f"{name}.self_attn.{part}.weight", head)
        for part, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            _put(shapes, f"{name}.mlp.{part}_proj.weight", *shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            _put(shapes, f"{name}.{norm}.weight", width)
    for norm in ("hidden_norm", "norm"):
        _put(shapes, f"{norm}.weight", width)
    return shapes


def _put(made: Shapes, name: str, *shape: int) -> None:
    made[name] = ("BF16", shape)
