"""config.json of published Gemma 4 models, of their MTP drafts and of other heads, by size. Pure."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.checkpoint.sizes import SIZES, UNIFIED

_SIX: Final = [*["sliding_attention"] * 5, "full_attention"]


@functools.cache
def _facts() -> dict[str, Any]:
    configs: dict[str, Any] = json.loads(Path(__file__).with_name("configs.json").read_text(encoding="utf-8"))
    return configs


def text_of(size: str) -> dict[str, Any]:
    """Return text_config of a size: 31B, 26B-A4B, 12B, E4B or E2B."""
    text = copy.deepcopy(_facts()["texts"][size])
    pattern, times = text.pop("layer_pattern")
    return {**_facts()["common"], **text, "layer_types": pattern * times}


def config(size: str, *, towers: bool = True) -> dict[str, Any]:
    """Return config.json of a Gemma 4 of this size, in the form of the published files."""
    large, facts = SIZES[size].large_towers, copy.deepcopy(_facts())
    fields = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "text_config": text_of(size),
        "vision_config": facts["vision"]["large" if large else "small"],
        "audio_config": None if large else facts["audio"],
        "tie_word_embeddings": True,
        "boi_token_id": 255999,
        "image_token_id": 258880,
        "eos_token_id": [1, 106],
    }
    if SIZES[size].unified:
        parts = {"vision_config": facts["unified"]["vision"], "audio_config": facts["unified"]["audio"]}
        fields |= {"architectures": [UNIFIED], "model_type": "gemma4_unified", **parts}
    return fields if towers else {**fields, "vision_config": None, "audio_config": None}


def assistant_config(size: str) -> dict[str, Any]:
    """Return config.json of the MTP draft for a size."""
    facts, target = _facts(), text_of(size)
    heads = ("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v")
    shared = {name: target[name] for name in (*heads, "sliding_window")}
    widths = dict(facts["assistants"][size])
    ordered = widths.pop("ordered", False)
    layers = {"num_hidden_layers": 4, "num_kv_shared_layers": 4, "layer_types": [*_SIX[:3], _SIX[-1]]}
    fields = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "dtype": "bfloat16",
        "text_config": {**facts["common"], **shared, **layers, **widths, "vocab_size_per_layer_input": 0},
        "tie_word_embeddings": True,
    }
    if SIZES[size].unified:
        fields |= {"architectures": ["Gemma4UnifiedAssistantForCausalLM"], "model_type": "gemma4_unified_assistant"}
        fields["text_config"]["model_type"] = target["model_type"]
    if ordered:
        fields |= {"use_ordered_embeddings": True, "num_centroids": 2048, "centroid_intermediate_top_k": 32}
    return fields


def eagle3_config(*, hidden: int = 5376) -> dict[str, Any]:
    """Return config.json of an EAGLE-3 head for the 31B, in the speculators format."""
    layer = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": hidden, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 262144,
        "max_position_embeddings": 131072,
    }  # fmt: skip
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    verifier = {"name_or_path": "RedHatAI/gemma-4-31B-it-NVFP4", "architectures": ["Gemma4ForConditionalGeneration"]}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [proposal], "verifier": verifier},
        "transformer_layer_config": layer,
        "draft_vocab_size": 32000,
        "target_hidden_size": hidden,
        "eagle_aux_hidden_state_layer_ids": [2, 30, 57],
        "dtype": "bfloat16",
    }


def block_config(kind: str) -> dict[str, Any]:
    """Return config.json of a 31B head that drafts a block at once, dflash2 or dspark, as speculators writes it."""
    facts = copy.deepcopy(_facts()["blocks"][kind])
    layer = facts["layer"]
    proposal = {"proposal_type": "greedy", "speculative_tokens": facts["config"]["block_size"] - 1}
    verifier = {"name_or_path": "google/gemma-4-31B-it", "architectures": ["Gemma4ForConditionalGeneration"]}
    return {
        **facts["config"],
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind, "proposal_methods": [proposal], "verifier": verifier},
        "transformer_layer_config": {**layer, "layer_types": ["sliding_attention"] * layer["num_hidden_layers"]},
        "target_hidden_size": layer["hidden_size"],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
