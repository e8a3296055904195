"""Checkpoints of the published shapes without their weights: real configs, real headers, zeros for bodies.

The sizes are those of transformers' conversion script for Gemma 4 (models/gemma4/convert_gemma4_weights.py), the
tensor names those that transformers gives such models; test_checkpoint_real.py holds both against transformers.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.hub import Body, Zeros

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Tensor → safetensors' type and shape."""

SIZES = {"BF16": 2, "F8_E4M3": 1, "U8": 1, "F32": 4, "I32": 4, "I64": 8}
LARGE_VISION = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "head_dim": 72, "pooling_kernel_size": 3, "use_clipped_linears": False,
    "standardize": True, "patch_size": 16, "position_embedding_size": 10240,
}  # fmt: skip
SMALL_VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "pooling_kernel_size": 3, "use_clipped_linears": True,
    "standardize": False, "patch_size": 16, "position_embedding_size": 10240,
}  # fmt: skip
AUDIO = {
    "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5,
    "subsampling_conv_channels": [128, 32], "output_proj_dims": 1536, "use_clipped_linears": True,
}  # fmt: skip
COMMON = {
    "model_type": "gemma4_text", "vocab_size": 262144, "vocab_size_per_layer_input": 262144, "head_dim": 256,
    "global_head_dim": 512, "max_position_embeddings": 131072, "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True, "sliding_window": 512, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": False, "use_double_wide_mlp": False, "enable_moe_block": False, "dtype": "bfloat16",
    "num_global_key_value_heads": None,
}  # fmt: skip
SIX, FIVE = [*["sliding_attention"] * 5, "full_attention"], [*["sliding_attention"] * 4, "full_attention"]
TEXTS: dict[str, dict[str, Any]] = {
    "31B": {
        "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": True, "sliding_window": 1024,
        "max_position_embeddings": 262144, "layer_types": SIX * 10, "use_bidirectional_attention": "vision",
    },
    "26B-A4B": {
        "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True, "sliding_window": 1024,
        "max_position_embeddings": 262144, "layer_types": SIX * 5, "enable_moe_block": True, "num_experts": 128,
        "moe_intermediate_size": 704, "top_k_experts": 8, "use_bidirectional_attention": "vision",
    },
    "E2B": {
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
        "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 256, "layer_types": FIVE * 7,
    },
    "E4B": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "num_attention_heads": 8,
        "num_key_value_heads": 2, "num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256,
        "layer_types": SIX * 7,
    },
}  # fmt: skip
SPECIAL = {
    "<pad>": 0, "<eos>": 1, "<bos>": 2, "<|tool>": 46, "<|think|>": 98, "<|channel>": 100, "<|turn>": 105,
    "<turn|>": 106, "<|image>": 255999, "<|audio>": 256000, "<|image|>": 258880, "<|audio|>": 258881,
}  # fmt: skip
NOT_QUANTIZED = ["lm_head", "model.vision_tower*", "model.embed_vision*", "model.audio_tower*", "model.embed_audio*"]


def config(size: str) -> dict[str, Any]:
    """config.json of a Gemma 4 of this size, in the form that the published files have."""
    large = size in ("31B", "26B-A4B")
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "text_config": copy.deepcopy({**COMMON, **TEXTS[size]}),
        "vision_config": dict(LARGE_VISION if large else SMALL_VISION),
        "audio_config": None if large else dict(AUDIO),
        "tie_word_embeddings": True,
        "boi_token_id": 255999,
        "image_token_id": 258880,
        "eos_token_id": [1, 106],
    }


def assistant_config(size: str) -> dict[str, Any]:
    """config.json of the MTP draft that goes with a size."""
    target = TEXTS[size]
    heads = ("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v")
    own = {name: target[name] for name in heads if name in target}
    window = {"sliding_window": target.get("sliding_window", 512), "vocab_size_per_layer_input": 0}
    layers = {"num_hidden_layers": 4, "num_kv_shared_layers": 4, "layer_types": [*["sliding_attention"] * 3, SIX[-1]]}
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "dtype": "bfloat16",
        "text_config": {**COMMON, **own, **window, **layers, "hidden_size": 1024, "intermediate_size": 8192},
        "tie_word_embeddings": True,
    }


def eagle3_config(*, hidden: int = 5376) -> dict[str, Any]:
    """config.json of an EAGLE-3 head for the 31B, in the speculators form."""
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


def per_layer_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same as transformers 5.16 and later write it."""
    changed = copy.deepcopy(dict(config))
    text = changed["text_config"]
    own: dict[str, Any] = {"head_dim": text.pop("global_head_dim")}
    heads = text.pop("num_global_key_value_heads")
    if text["attention_k_eq_v"] and heads is not None:
        own["num_key_value_heads"] = heads
    full = [index for index, kind in enumerate(text["layer_types"]) if kind == "full_attention"]
    text["per_layer_config"] = {f"{index:02d}": own for index in full}
    return changed


def tensors(config: Mapping[str, Any], *, unread_keys: bool = True) -> Shapes:
    """Every tensor of a Gemma 4, in BF16.

    With `unread_keys`, as the published files have it, layers that share another's cache have keys and values too;
    nothing reads them, and transformers does not write them.
    """
    found: Shapes = {}
    text, width = config["text_config"], config["text_config"]["hidden_size"]
    prefix = "model.language_model"
    _put(found, f"{prefix}.embed_tokens.weight", text["vocab_size"], width)
    for index in range(text["num_hidden_layers"]):
        _layer(found, f"{prefix}.layers.{index}", text, index, unread_keys=unread_keys)
    _put(found, f"{prefix}.norm.weight", width)
    per_layer = text["hidden_size_per_layer_input"]
    if per_layer:
        columns = text["num_hidden_layers"] * per_layer
        _put(found, f"{prefix}.embed_tokens_per_layer.weight", text["vocab_size_per_layer_input"], columns)
        _put(found, f"{prefix}.per_layer_model_projection.weight", columns, width)
        _put(found, f"{prefix}.per_layer_projection_norm.weight", per_layer)
    _vision(found, config["vision_config"], width)
    if config["audio_config"]:
        _audio(found, config["audio_config"], width)
    return found


def _put(found: Shapes, name: str, *shape: int) -> None:
    found[name] = ("BF16", shape)


def _linear(found: Shapes, name: str, rows: int, columns: int, *, clipped: bool) -> None:
    """A linear layer of a tower, which may keep its inputs and outputs within bounds."""
    _put(found, f"{name}.linear.weight", rows, columns)
    for bound in ("input_min", "input_max", "output_min", "output_max") if clipped else ():
        _put(found, f"{name}.{bound}")


def _layer(found: Shapes, name: str, text: Mapping[str, Any], index: int, *, unread_keys: bool) -> None:
    width, full = text["hidden_size"], text["layer_types"][index] == "full_attention"
    shared = index >= text["num_hidden_layers"] - text["num_kv_shared_layers"] > 0
    head = text["global_head_dim"] if full else text["head_dim"]
    heads, same = text["num_attention_heads"], text["attention_k_eq_v"] and full
    kv_heads = text["num_global_key_value_heads"] if same else text["num_key_value_heads"]
    attention = f"{name}.self_attn"
    _put(found, f"{attention}.q_proj.weight", heads * head, width)
    _put(found, f"{attention}.o_proj.weight", width, heads * head)
    _put(found, f"{attention}.q_norm.weight", head)
    if unread_keys or not shared:
        _put(found, f"{attention}.k_norm.weight", head)
        _put(found, f"{attention}.k_proj.weight", kv_heads * head, width)
        if not same:
            _put(found, f"{attention}.v_proj.weight", kv_heads * head, width)
    inner = text["intermediate_size"] * (2 if text["use_double_wide_mlp"] and shared else 1)
    _put(found, f"{name}.mlp.gate_proj.weight", inner, width)
    _put(found, f"{name}.mlp.up_proj.weight", inner, width)
    _put(found, f"{name}.mlp.down_proj.weight", width, inner)
    norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    _put(found, f"{name}.layer_scalar", 1)
    if text["hidden_size_per_layer_input"]:
        _put(found, f"{name}.per_layer_input_gate.weight", text["hidden_size_per_layer_input"], width)
        _put(found, f"{name}.per_layer_projection.weight", width, text["hidden_size_per_layer_input"])
        norms.append("post_per_layer_input_norm")
    if text["enable_moe_block"]:
        norms += [f"post_feedforward_layernorm_{number}" for number in (1, 2)] + ["pre_feedforward_layernorm_2"]
        _experts(found, name, text)
    for norm in norms:
        _put(found, f"{name}.{norm}.weight", width)


def _experts(found: Shapes, name: str, text: Mapping[str, Any]) -> None:
    width, experts, inner = text["hidden_size"], text["num_experts"], text["moe_intermediate_size"]
    _put(found, f"{name}.router.scale", width)
    _put(found, f"{name}.router.per_expert_scale", experts)
    _put(found, f"{name}.router.proj.weight", experts, width)
    _put(found, f"{name}.experts.gate_up_proj", experts, 2 * inner, width)
    _put(found, f"{name}.experts.down_proj", experts, width, inner)


def _vision(found: Shapes, vision: Mapping[str, Any], text_width: int) -> None:
    width, inner, head = vision["hidden_size"], vision["intermediate_size"], vision["head_dim"]
    tower, clipped = "model.vision_tower", vision["use_clipped_linears"]
    _put(found, f"{tower}.patch_embedder.position_embedding_table", 2, vision["position_embedding_size"], width)
    _put(found, f"{tower}.patch_embedder.input_proj.weight", width, 3 * vision["patch_size"] ** 2)
    for norm in ("std_bias", "std_scale") if vision["standardize"] else ():
        _put(found, f"{tower}.{norm}", width)
    for index in range(vision["num_hidden_layers"]):
        layer = f"{tower}.encoder.layers.{index}"
        for part in "qkvo":
            _linear(found, f"{layer}.self_attn.{part}_proj", width, width, clipped=clipped)
        for part, rows, columns in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            _linear(found, f"{layer}.mlp.{part}_proj", rows, columns, clipped=clipped)
        for norm in ("q_norm", "k_norm"):
            _put(found, f"{layer}.self_attn.{norm}.weight", head)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            _put(found, f"{layer}.{norm}.weight", width)
        for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            _put(found, f"{layer}.{norm}.weight", width)
    _put(found, "model.embed_vision.embedding_projection.weight", text_width, width)


def _audio(found: Shapes, audio: Mapping[str, Any], text_width: int) -> None:
    width, (first, second) = audio["hidden_size"], audio["subsampling_conv_channels"]
    tower, output = "model.audio_tower", audio["output_proj_dims"]
    conv = f"{tower}.subsample_conv_projection"
    for name, shape in (("layer0", (first, 1, 3, 3)), ("layer1", (second, first, 3, 3))):
        _put(found, f"{conv}.{name}.conv.weight", *shape)
        _put(found, f"{conv}.{name}.norm.weight", shape[0])
    _put(found, f"{conv}.input_proj_linear.weight", width, width)
    for index in range(audio["num_hidden_layers"]):
        _audio_layer(found, f"{tower}.layers.{index}", audio)
    _put(found, f"{tower}.output_proj.weight", output, width)
    _put(found, f"{tower}.output_proj.bias", output)
    _put(found, "model.embed_audio.embedding_projection.weight", text_width, output)


def _audio_layer(found: Shapes, name: str, audio: Mapping[str, Any]) -> None:
    width, clipped = audio["hidden_size"], audio["use_clipped_linears"]
    for part in ("feed_forward1", "feed_forward2"):
        _linear(found, f"{name}.{part}.ffw_layer_1", 4 * width, width, clipped=clipped)
        _linear(found, f"{name}.{part}.ffw_layer_2", width, 4 * width, clipped=clipped)
        _put(found, f"{name}.{part}.pre_layer_norm.weight", width)
        _put(found, f"{name}.{part}.post_layer_norm.weight", width)
    for part in ("q_proj", "k_proj", "v_proj", "post"):
        _linear(found, f"{name}.self_attn.{part}", width, width, clipped=clipped)
    _put(found, f"{name}.self_attn.per_dim_scale", width // audio["num_attention_heads"])
    _put(found, f"{name}.self_attn.relative_k_proj.weight", width, width)
    _linear(found, f"{name}.lconv1d.linear_start", 2 * width, width, clipped=clipped)
    _linear(found, f"{name}.lconv1d.linear_end", width, width, clipped=clipped)
    _put(found, f"{name}.lconv1d.depthwise_conv1d.weight", width, 1, audio["conv_kernel_size"])
    for norm in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        _put(found, f"{name}.{norm}.weight", width)


def is_decoder_linear(name: str) -> bool:
    """The modules that an NVFP4 checkpoint of a Gemma 4 has quantized."""
    return ".language_model.layers." in name and name.endswith("_proj.weight")


def nvfp4(shapes: Shapes, *, awq: bool = False, inputs: bool = True, kv_scales: bool = False) -> Shapes:
    """The same as ModelOpt's NVFP4 stores it: two weights a byte, one E4M3 scale for 16."""
    found: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        if not is_decoder_linear(name):
            found[name] = (dtype, shape)
            continue
        rows, columns = shape
        found[name] = ("U8", (rows, columns // 2))
        found[f"{name}_scale"] = ("F8_E4M3", (rows, columns // 16))
        found[f"{name}_scale_2"] = ("F32", ())
        module = name.removesuffix(".weight")
        if inputs:
            found[f"{module}.input_scale"] = ("F32", ())
        if awq:
            found[f"{module}.pre_quant_scale"] = ("BF16", (columns,))
        if kv_scales and module.endswith(("k_proj", "v_proj")):
            found[f"{module}.{module[-6]}_scale"] = ("F32", ())
    return found


def single_experts(shapes: Shapes) -> Shapes:
    """Experts stored one by one, quantized to NVFP4, as an exporter without fused experts has them."""
    found: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        if ".experts." not in name:
            found[name] = (dtype, shape)
            continue
        stem, (experts, rows, columns) = name.rpartition(".")[0], shape
        parts = {"gate_proj": rows // 2, "up_proj": rows // 2} if name.endswith("gate_up_proj") else {"down_proj": rows}
        for expert in range(experts):
            for part, own in parts.items():
                found[f"{stem}.{expert}.{part}.weight"] = (dtype, (own, columns))
    return nvfp4(found)


def eagle3_tensors(config: Mapping[str, Any]) -> Shapes:
    """An EAGLE-3 head: one layer over embeddings and hidden states, its own small output head."""
    layer, found = config["transformer_layer_config"], Shapes()
    width, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    rows = {"q": layer["num_attention_heads"] * head, "k": layer["num_key_value_heads"] * head}
    _put(found, "fc.weight", width, 3 * config["target_hidden_size"])
    for part in "qkv":
        _put(found, f"layers.0.self_attn.{part}_proj.weight", rows["q" if part == "q" else "k"], 2 * width)
    _put(found, "layers.0.self_attn.o_proj.weight", width, rows["q"])
    for part, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        _put(found, f"layers.0.mlp.{part}_proj.weight", *shape)
    _put(found, "lm_head.weight", config["draft_vocab_size"], width)
    found["d2t"] = ("I64", (config["draft_vocab_size"],))
    return found


def assistant_tensors(config: Mapping[str, Any]) -> Shapes:
    """An MTP draft: queries only, and projections from and to the target's width."""
    text, found = config["text_config"], Shapes()
    width, backbone = text["hidden_size"], config["backbone_hidden_size"]
    _put(found, "model.embed_tokens.weight", text["vocab_size"], width)
    for index in range(text["num_hidden_layers"]):
        _layer(found, f"model.layers.{index}", text, index, unread_keys=True)
    _put(found, "model.norm.weight", width)
    _put(found, "pre_projection.weight", width, 2 * backbone)
    _put(found, "post_projection.weight", backbone, width)
    own = (".k_proj.", ".v_proj.", ".k_norm.")
    return {name: shape for name, shape in found.items() if not any(mark in name for mark in own)}


def weight_files(shapes: Shapes, *, shard: int = 5 * 10**9) -> dict[str, Body]:
    """The safetensors files of these tensors, cut as transformers cuts them, and their index."""
    shards = list(_shards(shapes, shard))
    if len(shards) == 1:
        return {"model.safetensors": safetensors(shards[0])}
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    table = {tensor: name for name, part in zip(names, shards, strict=True) for tensor in part}
    index = json.dumps({"metadata": {}, "weight_map": table}, indent=2).encode()
    files = {name: safetensors(part) for name, part in zip(names, shards, strict=True)}
    return {**files, "model.safetensors.index.json": index}


def _shards(shapes: Shapes, limit: int) -> Iterator[Shapes]:
    part, size = Shapes(), 0
    for name, (dtype, shape) in shapes.items():
        nbytes = SIZES[dtype] * math.prod(shape)
        if part and size + nbytes > limit:
            yield part
            part, size = Shapes(), 0
        part[name] = (dtype, shape)
        size += nbytes
    yield part


def safetensors(shapes: Shapes) -> Zeros:
    """One file: a header as safetensors writes it, zeros for the rest."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda one: (-SIZES[one[1][0]], one[0])):
        nbytes = SIZES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return Zeros(len(raw).to_bytes(8, "little") + raw, 8 + len(raw) + at)


def modelopt(algorithm: str = "NVFP4", *, kv_cache: str | None = None) -> dict[str, Any]:
    """hf_quant_config.json."""
    own = {"quant_algo": algorithm, "kv_cache_quant_algo": kv_cache, "group_size": 16}
    return {"producer": {"name": "modelopt"}, "quantization": {**own, "exclude_modules": NOT_QUANTIZED}}


def tokenizer(*, more: int = 32_000_000, special: Mapping[str, int] = SPECIAL) -> bytes:
    """A tokenizer.json of the published size: control tokens first, and a vocabulary that is only filling."""
    added = [
        {"id": number, "content": token, "single_word": False, "special": True} for token, number in special.items()
    ]
    head = json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added})[:-1]
    return f'{head}, "model": {{"type": "BPE", "vocab": {{"{"x" * more}": 3}}, "merges": []}}}}'.encode()


def model(
    config: Mapping[str, Any],
    shapes: Shapes,
    *,
    instruct: bool = True,
    tokens: bytes | None = None,
    separate: Mapping[str, Any] | None = None,
) -> dict[str, Body]:
    """All files of a checkpoint."""
    files: dict[str, Body] = {"config.json": json.dumps(config, indent=2).encode(), **weight_files(shapes)}
    if instruct:
        files["chat_template.jinja"] = b"{{ messages }}" * 900
    if tokens is not None:
        files["tokenizer.json"] = tokens
        files["tokenizer_config.json"] = json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}).encode()
    if separate:
        files["hf_quant_config.json"] = json.dumps(separate).encode()
    return files


def write(folder: Path, files: Mapping[str, Body]) -> Path:
    """The files in a folder; what is zeros takes no room."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        with (folder / name).open("wb") as file:
            file.write(body if isinstance(body, bytes) else body.first)
            file.truncate(len(body))
    return folder
