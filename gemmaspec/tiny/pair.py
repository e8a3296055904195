"""The tiny pair: a target with the shape of Gemma 4 31B and a draft with that of E2B, both trained on one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from gemmaspec.tiny.words import UNKNOWN_TO_DRAFT, VOCABULARY_SIZE, lesson, make_tokenizer

STOP_IDS = [1, 106, 50]
SHARED = {
    "vocab_size": VOCABULARY_SIZE, "vocab_size_per_layer_input": VOCABULARY_SIZE,
    "head_dim": 256, "global_head_dim": 512, "max_position_embeddings": 4096,
    "final_logit_softcapping": 30.0, "tie_word_embeddings": True, "initializer_range": 0.02,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
TARGET_TEXT = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False, "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}  # fmt: skip
DRAFT_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 10, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_global_key_value_heads": None, "attention_k_eq_v": False, "num_kv_shared_layers": 5,
    "hidden_size_per_layer_input": 32, "use_double_wide_mlp": True, "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 2,
}  # fmt: skip
VISION = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 32, "patch_size": 16, "pooling_kernel_size": 3,
    "position_embedding_size": 256, "default_output_length": 280,
}  # fmt: skip
AUDIO = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "subsampling_conv_channels": [16, 8], "output_proj_dims": 64,
}  # fmt: skip
MEDIA_IDS = {
    "boi_token_id": 1000, "eoi_token_id": 1004, "image_token_id": 1002, "video_token_id": 1006,
    "boa_token_id": 1001, "eoa_token_id": 1005, "eoa_token_index": 1005, "audio_token_id": 1003,
}  # fmt: skip

NOISE = 0.1
"""Weight of every branch norm: the random part of a layer relative to the taught part."""
LESSON = 4.0
"""Weight of the last layer's feed-forward norm: the taught successor relative to the word that it follows."""
SHARPNESS = 3.0
"""Weight of the final norm: with it a sampled reply is as readable as a greedy one."""


def teach(language_model: Any, successor: dict[int, int]) -> None:
    """Write the successor table into embeddings and the last feed-forward layer, and damp everything else.

    Every embedding has the same component along one constant axis; each word of the lesson has an axis of its own.
    The last layer's gate looks along the constant axis only, which makes that layer a linear map: from the axis of a
    word to the axis of its successor, and, more softly, from anything to the first word.
    """
    words = list(successor)
    embeddings = language_model.embed_tokens.weight
    axes = torch.linalg.qr(torch.randn(embeddings.shape[1], len(words) + 1))[0].T
    constant, word_axes = axes[0], dict(zip(words, axes[1:], strict=True))
    other = embeddings.float() - (embeddings.float() @ axes.T) @ axes
    taught = 0.3 * torch.nn.functional.normalize(other, dim=1) + constant
    for word, axis in word_axes.items():
        taught[word] = axis + constant
    embeddings.copy_(taught)

    step = 0.35 * torch.outer(word_axes[words[0]], constant)
    for word, following in successor.items():
        step += torch.outer(word_axes[following], word_axes[word])
    for name, weight in language_model.layers.named_parameters():
        if any(part in name for part in ("post_attention_layernorm", "post_feedforward_layernorm", "post_per_layer")):
            weight.fill_(NOISE)
    last = language_model.layers[-1]
    width = embeddings.shape[1]
    last.mlp.gate_proj.weight.copy_(constant.expand_as(last.mlp.gate_proj.weight))
    last.mlp.up_proj.weight.zero_()
    last.mlp.up_proj.weight[:width].copy_(torch.eye(width))
    last.mlp.down_proj.weight.zero_()
    last.mlp.down_proj.weight[:, :width].copy_(step)
    last.post_feedforward_layernorm.weight.fill_(LESSON)
    language_model.norm.weight.fill_(SHARPNESS)


def save_model(folder: Path, *, text: dict[str, Any], audio: dict[str, Any] | None, successor: dict[int, int]) -> None:
    """Write config.json, generation_config.json and model.safetensors of one model."""
    from transformers import (  # type: ignore[import-not-found]
        Gemma4Config,
        Gemma4ForConditionalGeneration,
    )

    config = Gemma4Config(
        text_config={**SHARED, **text},
        vision_config=dict(VISION),
        audio_config=audio,
        tie_word_embeddings=True,
        **MEDIA_IDS,
    )
    model = Gemma4ForConditionalGeneration(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        teach(model.model.language_model, successor)
    model.generation_config.update(eos_token_id=STOP_IDS, pad_token_id=0, bos_token_id=2)
    model.save_pretrained(folder)
    add_shared_layers(folder / "model.safetensors", {**SHARED, **text})
    restore_published_keys(folder / "config.json", {**SHARED, **text})


def add_shared_layers(weights: Path, text: dict[str, Any]) -> None:
    """Add keys and values for the layers that share another layer's cache.

    The published E2B and E4B files contain them, and vLLM requires some of them (0.20: "weights were not initialized
    from
    checkpoint"), although it never reads them. transformers does not write them.
    """
    from safetensors.torch import load_file, save_file  # type: ignore[import-not-found]

    tensors = load_file(weights)
    layers, shared = text["num_hidden_layers"], text["num_kv_shared_layers"]
    for layer in range(layers - shared, layers):
        head = text["global_head_dim" if text["layer_types"][layer] == "full_attention" else "head_dim"]
        rows = text["num_key_value_heads"] * head
        prefix = f"model.language_model.layers.{layer}.self_attn"
        for name in ("k_proj", "v_proj"):
            random = 0.02 * torch.randn(rows, text["hidden_size"])
            tensors.setdefault(f"{prefix}.{name}.weight", random.to(torch.bfloat16))
        tensors.setdefault(f"{prefix}.k_norm.weight", torch.ones(head, dtype=torch.bfloat16))
    save_file(tensors, weights, metadata={"format": "pt"})


def restore_published_keys(config: Path, text: dict[str, Any]) -> None:
    """Write config.json the way the published files have it, so that older and newer releases read it.

    transformers 5.16 and newer writes `per_layer_config` instead of the plain attributes, and calls the vision
    encoder's "default" rotary embedding "axial"; it reads both, transformers 5.14 only the older form.
    """
    content = json.loads(config.read_text(encoding="utf-8"))
    names = ("head_dim", "global_head_dim", "num_kv_shared_layers", "sliding_window", "layer_types")
    content["text_config"].update({name: text[name] for name in (*names, "num_global_key_value_heads")})
    content["text_config"].pop("per_layer_config", None)
    rotary = content["vision_config"].get("rope_parameters", {})
    if rotary.get("rope_type") == "axial":
        rotary["rope_type"] = "default"
    config.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def save_processor(folder: Path, tokenizer: Any, template: str) -> None:
    """Write the tokenizer and the image, video and audio processors."""
    from transformers import (
        Gemma4AudioFeatureExtractor,
        Gemma4ImageProcessor,
        Gemma4Processor,
        Gemma4VideoProcessor,
    )

    Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(),
        video_processor=Gemma4VideoProcessor(),
        tokenizer=tokenizer,
        chat_template=template,
    ).save_pretrained(folder)


def make_target(folder: Path, template: str) -> None:
    """Write tiny-target into `folder`."""
    _make(folder, template, text=TARGET_TEXT, audio=None, mistakes=(), seed=0)


def make_draft(folder: Path, template: str) -> None:
    """Write tiny-draft into `folder`."""
    _make(folder, template, text=DRAFT_TEXT, audio=dict(AUDIO), mistakes=UNKNOWN_TO_DRAFT, seed=1)


def _make(
    folder: Path,
    template: str,
    *,
    text: dict[str, Any],
    audio: dict[str, Any] | None,
    mistakes: tuple[str, ...],
    seed: int,
) -> None:
    tokenizer = make_tokenizer(template)
    torch.manual_seed(seed)
    save_model(folder, text=text, audio=audio, successor=lesson(tokenizer, mistakes=mistakes))
    save_processor(folder, tokenizer, template)
