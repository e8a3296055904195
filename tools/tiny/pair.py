"""The tiny pair: a target with the shape of Gemma 4 31B and a draft with that of E2B, both taught to talk a little."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny import plain
from tools.tiny.lessons import IGNORED, Batch, Chat, Kind, Lessons
from tools.tiny.words import VOCABULARY_SIZE

STOP_IDS = [1, 106, 50]
SHARED = {
    "vocab_size": VOCABULARY_SIZE, "vocab_size_per_layer_input": VOCABULARY_SIZE,
    "head_dim": 256, "global_head_dim": 512, "max_position_embeddings": 131072,
    "final_logit_softcapping": 30.0, "tie_word_embeddings": True, "initializer_range": 0.02,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
TARGET_TEXT = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False, "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}  # fmt: skip
DRAFT_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 10, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_global_key_value_heads": None, "attention_k_eq_v": False, "num_kv_shared_layers": 5,
    "hidden_size_per_layer_input": 16, "use_double_wide_mlp": True, "sliding_window": 512,
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

UNTAUGHT = 0.02
"""Weight of the branch norms of layers that are not taught, so that they change logits and no words."""
NOISE = 0.15
"""Standard deviation of what is added to the embeddings in training, against their own of 1: what is learned by a wide
margin stays right with the untaught layers and in bfloat16."""
LOOKS = 0.06
"""Weight of the query norms at the start. Gemma 4 does not scale its attention, and with 1 each head would see a single
token, too sharply to learn which."""
RATE = 3e-3
GROUPS = 4
"""Groups of chats that are made at once."""
CHATS: dict[Kind, int] = {"whole": 64, "opening": 96, "long": 32, "endless": 12, "deep": 8}
"""Chats in a batch of each kind."""
TURNS: tuple[Kind, ...] = (
    "whole",
    "opening",
    "whole",
    "long",
    "whole",
    "opening",
    "deep",
    "whole",
    "opening",
    "endless",
)
"""The kinds take turns."""
SHARPER, CAP = 1.6, 60.0
"""What the last norm is multiplied by after all lessons, and the cap of the logits from then on: 128 numbers cannot
keep 3,000 words further apart, and 1 of 100 replies at temperature 1 would have a wrong one."""
TARGET_LAYERS = (1, 3, 4)
DRAFT_LAYERS = (1, 3, 7)
"""The layers that learn. They have a sliding window, so that a reply depends on what is near, however long the text
before is. The last two of the draft share a cache."""


def teach(language_model: Any, lessons: Lessons, *, layers: Collection[int], mistakes: bool, seconds: float) -> None:
    """Train the embeddings and some layers to reply; the others are damped, and left out meanwhile to save time.

    `mistakes` says whether the model learns the mistakes of a draft.
    """
    wrong = lessons.mistakes() if mistakes else {}
    _prepare(language_model, layers)
    noise = _Noise()
    hook = language_model.embed_tokens.register_forward_hook(lambda _, __, out: out + noise.now * torch.randn_like(out))
    with _left_out(layer for place, layer in enumerate(language_model.layers) if place not in layers):
        losses = (_loss(language_model, Batch.of(chats, wrong)) for chats in several(lessons))
        plain.learn(language_model, losses, seconds=seconds, rate=RATE, told=noise.fade)
    hook.remove()
    with torch.no_grad():
        language_model.norm.weight.mul_(SHARPER)


class _Noise:
    """The noise of the embeddings, which fades as the rate falls: a wide margin first, then certainty."""

    now = NOISE

    def fade(self, share: float) -> None:
        """Set it to a share of all of it."""
        self.now = NOISE * max(share, 0.1)


_lessons: Lessons | None = None


def several(lessons: Lessons) -> Iterator[list[Chat]]:
    """Yield groups of chats for ever, in an order that the seed decides; other processes make them."""
    global _lessons
    _lessons = lessons
    dice, seeds = random.Random(0), itertools.count()
    with multiprocessing.get_context("fork").Pool(max(1, (os.cpu_count() or 2) // 2 - 1)) as pool:
        made = pool.imap(_made, ((kind, seed) for seed, kind in zip(seeds, itertools.cycle(TURNS), strict=False)))
        while True:
            groups = [group for _ in TURNS for group in next(made)]
            dice.shuffle(groups)
            yield from groups


def _made(asked: tuple[Kind, int]) -> list[list[Chat]]:
    assert _lessons
    kind, seed = asked
    return _lessons.chats(GROUPS, CHATS[kind], kind, seed=seed)


@torch.no_grad()
def _prepare(language_model: Any, layers: Collection[int]) -> None:
    """Set the weights at the start, and what is trained. Other layers have matrices of signs, which compress well."""
    torch.nn.init.normal_(language_model.embed_tokens.weight, std=language_model.config.hidden_size**-0.5)
    for place, layer in enumerate(language_model.layers):
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, LOOKS)
        if place in layers:
            continue
        layer.requires_grad_(False)
        for name, weight in layer.named_parameters():
            if any(part in name for part in ("post_attention_layer", "post_feedforward_layer", "post_per_layer")):
                torch.nn.init.constant_(weight, UNTAUGHT)
            elif weight.dim() == 2:
                weight.copy_(torch.sign(weight) * 2.0**-6)


@contextlib.contextmanager
def _left_out(layers: Iterable[Any]) -> Iterator[None]:
    """Let layers hand on what they get."""
    own = list(layers)
    for layer in own:
        layer.forward = lambda hidden_states, *_, **__: hidden_states
    yield
    for layer in own:
        del layer.forward


def _loss(language_model: Any, batch: Batch) -> Any:
    """Return the cross entropy of the replies, and once more that of their first tokens, which choose them."""
    seen = language_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    chosen = torch.arange(len(batch.labels)), batch.asked
    learned = batch.labels != IGNORED
    return _entropy(language_model, seen[learned], batch.labels[learned]) + _entropy(
        language_model, seen[chosen], batch.labels[chosen]
    )


def _entropy(language_model: Any, seen: Any, labels: Any) -> Any:
    most = SHARED["final_logit_softcapping"]
    logits = most * torch.tanh(seen @ language_model.embed_tokens.weight.T / most)
    return torch.nn.functional.cross_entropy(logits, labels)


def save_model(
    folder: Path,
    lessons: Lessons,
    *,
    text: dict[str, Any],
    audio: dict[str, Any] | None,
    layers: Collection[int],
    mistakes: bool,
    seconds: float,
) -> None:
    """Teach a model, and write its config.json, generation_config.json and model.safetensors."""
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
    model = Gemma4ForConditionalGeneration(config).float().eval().to(torch.get_default_device())
    teach(model.model.language_model, lessons, layers=layers, mistakes=mistakes, seconds=seconds)
    model.config.text_config.final_logit_softcapping = CAP
    model = model.to(torch.bfloat16).cpu()
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


def save_processor(folder: Path, tokenizer: Any) -> None:
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
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)


def make_target(folder: Path, tokenizer: Any, seconds: float) -> None:
    """Write tiny-target into `folder`."""
    _make(
        folder, tokenizer, text=TARGET_TEXT, audio=None, layers=TARGET_LAYERS, mistakes=False, seed=0, seconds=seconds
    )


def make_draft(folder: Path, tokenizer: Any, seconds: float) -> None:
    """Write tiny-draft into `folder`."""
    _make(
        folder,
        tokenizer,
        text=DRAFT_TEXT,
        audio=dict(AUDIO),
        layers=DRAFT_LAYERS,
        mistakes=True,
        seed=1,
        seconds=seconds,
    )


def _make(folder: Path, tokenizer: Any, *, seed: int, **own: Any) -> None:
    torch.manual_seed(seed)
    save_model(folder, Lessons(tokenizer, seed=seed), **own)
    save_processor(folder, tokenizer)
