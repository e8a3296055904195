"""Tensors of Gemma 4 checkpoints: names, types and shapes, derived from configuration and quantization.

The names are those of transformers; the tests compare names and shapes with transformers. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Tensor → safetensors' type and shape."""


def tensors(config: Mapping[str, Any], *, unread_keys: bool = True) -> Shapes:
    """Return every tensor of a Gemma 4, in BF16.

    With `unread_keys`, as in the published files, layers that share another layer's cache have keys and values too.
    Nothing reads them, and transformers does not write them.
    """
    shapes: Shapes = {}
    text, width = config["text_config"], config["text_config"]["hidden_size"]
    prefix = "model.language_model"
    _put(shapes, f"{prefix}.embed_tokens.weight", text["vocab_size"], width)
    for index in range(text["num_hidden_layers"]):
        _layer(shapes, f"{prefix}.layers.{index}", text, index, unread_keys=unread_keys)
    _put(shapes, f"{prefix}.norm.weight", width)
    per_layer = text["hidden_size_per_layer_input"]
    if per_layer:
        columns = text["num_hidden_layers"] * per_layer
        _put(shapes, f"{prefix}.embed_tokens_per_layer.weight", text["vocab_size_per_layer_input"], columns)
        _put(shapes, f"{prefix}.per_layer_model_projection.weight", columns, width)
        _put(shapes, f"{prefix}.per_layer_projection_norm.weight", per_layer)
    if config["model_type"] == "gemma4_unified":
        _unified(shapes, config, width)
        return shapes
    _vision(shapes, config["vision_config"], width)
    if config["audio_config"]:
        _audio(shapes, config["audio_config"], width)
    return shapes


def _put(shapes: Shapes, name: str, *shape: int) -> None:
    shapes[name] = ("BF16", shape)


def _linear(shapes: Shapes, name: str, rows: int, columns: int, *, clipped: bool) -> None:
    """Add a linear layer of an encoder, which may clip its inputs and outputs."""
    _put(shapes, f"{name}.linear.weight", rows, columns)
    for bound in ("input_min", "input_max", "output_min", "output_max") if clipped else ():
        _put(shapes, f"{name}.{bound}")


def _layer(shapes: Shapes, name: str, text: Mapping[str, Any], index: int, *, unread_keys: bool) -> None:
    width, full = text["hidden_size"], text["layer_types"][index] == "full_attention"
    shared = index >= text["num_hidden_layers"] - text["num_kv_shared_layers"] > 0
    head = text["global_head_dim"] if full else text["head_dim"]
    heads, same = text["num_attention_heads"], text["attention_k_eq_v"] and full
    kv_heads = text["num_global_key_value_heads"] if same else text["num_key_value_heads"]
    attention = f"{name}.self_attn"
    _put(shapes, f"{attention}.q_proj.weight", heads * head, width)
    _put(shapes, f"{attention}.o_proj.weight", width, heads * head)
    _put(shapes, f"{attention}.q_norm.weight", head)
    if unread_keys or not shared:
        _put(shapes, f"{attention}.k_norm.weight", head)
        _put(shapes, f"{attention}.k_proj.weight", kv_heads * head, width)
        if not same:
            _put(shapes, f"{attention}.v_proj.weight", kv_heads * head, width)
    inner = text["intermediate_size"] * (2 if text["use_double_wide_mlp"] and shared else 1)
    _put(shapes, f"{name}.mlp.gate_proj.weight", inner, width)
    _put(shapes, f"{name}.mlp.up_proj.weight", inner, width)
    _put(shapes, f"{name}.mlp.down_proj.weight", width, inner)
    norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    _put(shapes, f"{name}.layer_scalar", 1)
    if text["hidden_size_per_layer_input"]:
        _put(shapes, f"{name}.per_layer_input_gate.weight", text["hidden_size_per_layer_input"], width)
        _put(shapes, f"{name}.per_layer_projection.weight", width, text["hidden_size_per_layer_input"])
        norms.append("post_per_layer_input_norm")
    if text["enable_moe_block"]:
        norms += [f"post_feedforward_layernorm_{number}" for number in (1, 2)] + ["pre_feedforward_layernorm_2"]
        _experts(shapes, name, text)
    for norm in norms:
        _put(shapes, f"{name}.{norm}.weight", width)


def _experts(shapes: Shapes, name: str, text: Mapping[str, Any]) -> None:
    width, experts, inner = text["hidden_size"], text["num_experts"], text["moe_intermediate_size"]
    _put(shapes, f"{name}.router.scale", width)
    _put(shapes, f"{name}.router.per_expert_scale", experts)
    _put(shapes, f"{name}.router.proj.weight", experts, width)
    _put(shapes, f"{name}.experts.gate_up_proj", experts, 2 * inner, width)
    _put(shapes, f"{name}.experts.down_proj", experts, width, inner)


def _vision(shapes: Shapes, vision: Mapping[str, Any], text_width: int) -> None:
    width, inner, head = vision["hidden_size"], vision["intermediate_size"], vision["head_dim"]
    tower, clipped = "model.vision_tower", vision["use_clipped_linears"]
    _put(shapes, f"{tower}.patch_embedder.position_embedding_table", 2, vision["position_embedding_size"], width)
    _put(shapes, f"{tower}.patch_embedder.input_proj.weight", width, 3 * vision["patch_size"] ** 2)
    for norm in ("std_bias", "std_scale") if vision["standardize"] else ():
        _put(shapes, f"{tower}.{norm}", width)
    for index in range(vision["num_hidden_layers"]):
        layer = f"{tower}.encoder.layers.{index}"
        for part in "qkvo":
            _linear(shapes, f"{layer}.self_attn.{part}_proj", width, width, clipped=clipped)
        for part, rows, columns in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            _linear(shapes, f"{layer}.mlp.{part}_proj", rows, columns, clipped=clipped)
        for norm in ("q_norm", "k_norm"):
            _put(shapes, f"{layer}.self_attn.{norm}.weight", head)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            _put(shapes, f"{layer}.{norm}.weight", width)
        for norm in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
            _put(shapes, f"{layer}.{norm}.weight", width)
    _put(shapes, "model.embed_vision.embedding_projection.weight", text_width, width)


def _unified(shapes: Shapes, config: Mapping[str, Any], text_width: int) -> None:
    """Add what a 12B has instead of encoders (vllm/model_executor/models/gemma4_unified.py, 0.32.0)."""
    vision, audio, part = config["vision_config"], config["audio_config"], "model.vision_embedder"
    width, patch = vision["mm_embed_dim"], 3 * (vision["patch_size"] * vision["pooling_kernel_size"]) ** 2
    _put(shapes, f"{part}.patch_dense.weight", width, patch)
    _put(shapes, f"{part}.patch_dense.bias", width)
    for norm, size in (("patch_ln1", patch), ("patch_ln2", width), ("pos_norm", width)):
        _put(shapes, f"{part}.{norm}.weight", size)
        _put(shapes, f"{part}.{norm}.bias", size)
    _put(shapes, f"{part}.pos_embedding", vision["mm_posemb_size"], 2, width)
    _put(shapes, "model.embed_vision.embedding_projection.weight", text_width, width)
    _put(shapes, "model.embed_audio.embedding_projection.weight", text_width, audio["audio_embed_dim"])


def _audio(shapes: Shapes, audio: Mapping[str, Any], text_width: int) -> None:
    width, (first, second) = audio["hidden_size"], audio["subsampling_conv_channels"]
    tower, output = "model.audio_tower", audio["output_proj_dims"]
    conv = f"{tower}.subsample_conv_projection"
    for name, shape in (("layer0", (first, 1, 3, 3)), ("layer1", (second, first, 3, 3))):
        _put(shapes, f"{conv}.{name}.conv.weight", *shape)
        _put(shapes, f"{conv}.{name}.norm.weight", shape[0])
    _put(shapes, f"{conv}.input_proj_linear.weight", width, width)
    for index in range(audio["num_hidden_layers"]):
        _audio_layer(shapes, f"{tower}.layers.{index}", audio)
    _put(shapes, f"{tower}.output_proj.weight", output, width)
    _put(shapes, f"{tower}.output_proj.bias", output)
    _put(shapes, "model.embed_audio.embedding_projection.weight", text_width, output)


def _audio_layer(shapes: Shapes, name: str, audio: Mapping[str, Any]) -> None:
    width, clipped = audio["hidden_size"], audio["use_clipped_linears"]
    for part in ("feed_forward1", "feed_forward2"):
        _linear(shapes, f"{name}.{part}.ffw_layer_1", 4 * width, width, clipped=clipped)
        _linear(shapes, f"{name}.{part}.ffw_layer_2", width, 4 * width, clipped=clipped)
        _put(shapes, f"{name}.{part}.pre_layer_norm.weight", width)
        _put(shapes, f"{name}.{part}.post_layer_norm.weight", width)
    for part in ("q_proj", "k_proj", "v_proj", "post"):
        _linear(shapes, f"{name}.self_attn.{part}", width, width, clipped=clipped)
    _put(shapes, f"{name}.self_attn.per_dim_scale", width // audio["num_attention_heads"])
    _put(shapes, f"{name}.self_attn.relative_k_proj.weight", width, width)
    _linear(shapes, f"{name}.lconv1d.linear_start", 2 * width, width, clipped=clipped)
    _linear(shapes, f"{name}.lconv1d.linear_end", width, width, clipped=clipped)
    _put(shapes, f"{name}.lconv1d.depthwise_conv1d.weight", width, 1, audio["conv_kernel_size"])
    for norm in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        _put(shapes, f"{name}.{norm}.weight", width)


def is_decoder_linear(name: str) -> bool:
    """Return whether quantized checkpoints of Gemma 4 quantize this module."""
    return ".language_model.layers." in name and name.endswith("_proj.weight")


def nvfp4(
    shapes: Shapes,
    *,
    awq: bool = False,
    inputs: bool = True,
    kv_scales: bool = False,
    quantized: Callable[[str], bool] = is_decoder_linear,
) -> Shapes:
    """Return the shapes in ModelOpt's NVFP4: two weights per byte, one E4M3 scale per 16 weights."""
    stored: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        if not quantized(name):
            stored[name] = (dtype, shape)
            continue
        rows, columns = shape
        stored[name] = ("U8", (rows, columns // 2))
        stored[f"{name}_scale"] = ("F8_E4M3", (rows, columns // 16))
        stored[f"{name}_scale_2"] = ("F32", ())
        module = name.removesuffix(".weight")
        if inputs:
            stored[f"{module}.input_scale"] = ("F32", ())
        if awq:
            stored[f"{module}.pre_quant_scale"] = ("BF16", (columns,))
        if kv_scales and module.endswith(("k_proj", "v_proj")):
            stored[f"{module}.{module[-6]}_scale"] = ("F32", ())
    return stored


def fp8(shapes: Shapes) -> Shapes:
    """Return the shapes with FP8 linear layers in the decoder, one scale per output channel."""
    stored: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        stored[name] = (dtype, shape)
        if is_decoder_linear(name) or ".experts." in name:
            stored[name] = ("F8_E4M3", shape)
            stored[f"{name}_scale"] = ("BF16", (*shape[:-1], 1))
    return stored


def single_experts(shapes: Shapes) -> Shapes:
    """Return the shapes with experts stored one by one in NVFP4, as an exporter without fused experts writes them."""
    return nvfp4(split_experts(shapes))


def split_experts(shapes: Shapes) -> Shapes:
    """Return the shapes with experts stored one by one."""
    stored: Shapes = {}
    for name, (dtype, shape) in shapes.items():
        if ".experts." not in name:
            stored[name] = (dtype, shape)
            continue
        stem, (experts, rows, columns) = name.rpartition(".")[0], shape
        parts = {"gate_proj": rows // 2, "up_proj": rows // 2} if name.endswith("gate_up_proj") else {"down_proj": rows}
        for expert in range(experts):
            for part, height in parts.items():
                stored[f"{stem}.{expert}.{part}.weight"] = (dtype, (height, columns))
    return stored


def eagle3_tensors(config: Mapping[str, Any]) -> Shapes:
    """Return an EAGLE-3 head: one layer over embeddings and hidden states, with its own small output head."""
    layer, shapes = config["transformer_layer_config"], Shapes()
    width, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    rows = {"q": layer["num_attention_heads"] * head, "k": layer["num_key_value_heads"] * head}
    _put(shapes, "fc.weight", width, 3 * config["target_hidden_size"])
    for part in "qkv":
        _put(shapes, f"layers.0.self_attn.{part}_proj.weight", rows["q" if part == "q" else "k"], 2 * width)
    _put(shapes, "layers.0.self_attn.o_proj.weight", width, rows["q"])
    for part, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        _put(shapes, f"layers.0.mlp.{part}_proj.weight", *shape)
    _put(shapes, "lm_head.weight", config["draft_vocab_size"], width)
    shapes["d2t"] = ("I64", (config["draft_vocab_size"],))
    return shapes


def assistant_tensors(config: Mapping[str, Any]) -> Shapes:
    """Return an MTP draft: only queries, and projections from and to the target's width."""
    text, shapes = config["text_config"], Shapes()
    width, backbone = text["hidden_size"], config["backbone_hidden_size"]
    _put(shapes, "model.embed_tokens.weight", text["vocab_size"], width)
    for index in range(text["num_hidden_layers"]):
        _layer(shapes, f"model.layers.{index}", text, index, unread_keys=True)
    _put(shapes, "model.norm.weight", width)
    _put(shapes, "pre_projection.weight", width, 2 * backbone)
    _put(shapes, "post_projection.weight", backbone, width)
    if config.get("use_ordered_embeddings"):
        _put(shapes, "masked_embedding.centroids.weight", config["num_centroids"], width)
        shapes["masked_embedding.token_ordering"] = ("I64", (text["vocab_size"],))
    marks = (".k_proj.", ".v_proj.", ".k_norm.")
    return {name: shape for name, shape in shapes.items() if not any(mark in name for mark in marks)}
