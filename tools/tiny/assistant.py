"""tiny-mtp: an assistant for tiny-target (Gemma4AssistantForCausalLM), which reads the target's KV cache.

It is trained the way vLLM drafts with it (vllm/model_executor/models/gemma4_mtp.py, vllm/v1/spec_decode/gemma4.py,
0.32.0): it has queries only; each layer attends to the keys and values of the target's last layer of its kind; its
inputs are the target's embedding of the last token and a hidden state, first the target's own, then the one that it
returned itself; and all steps of a draft query from the same position, the last one that the target has read.

A head that knows the last token could ignore the cache. This one cannot: in training, the embedding and the hidden
state of its first step come from another position, and only the cache belongs to the text. It can learn the right
token only from the cache.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny import plain
from tools.tiny.teacher import LENGTH, TEXTS, Reading, Teacher

STEPS = 4
"""Tokens per draft in training."""
HEAD_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False,
    "num_kv_shared_layers": 4, "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}  # fmt: skip
FROM_TARGET = (
    "vocab_size", "head_dim", "global_head_dim", "num_key_value_heads", "num_global_key_value_heads",
    "attention_k_eq_v", "sliding_window", "max_position_embeddings", "pad_token_id", "eos_token_id", "bos_token_id",
)  # fmt: skip
"""Settings that the head shares with the target, because it could not read the target's cache otherwise."""


def make(folder: Path, target: Path, seconds: float) -> None:
    """Write tiny-mtp, trained on the model in `target`, into `folder`."""
    torch.manual_seed(2)
    teacher = Teacher(target)
    head = new_head(teacher, json.loads((target / "config.json").read_text(encoding="utf-8"))["text_config"])
    losses = (lesson_loss(head, teacher.read()) for _ in itertools.count())
    plain.learn(head, losses, seconds=seconds, rate=4e-3)
    head.to(torch.bfloat16).cpu().save_pretrained(folder)
    restore_published_keys(folder / "config.json", head.config.text_config.layer_types, target)
    teacher.give_tokenizer(folder)


def new_head(teacher: Teacher, text: dict[str, Any]) -> Any:
    """Return an untrained head in float32; `text` is the target's text_config as its file has it."""
    from transformers import (  # type: ignore[import-not-found]
        Gemma4AssistantConfig,
        Gemma4AssistantForCausalLM,
        Gemma4TextConfig,
    )

    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**HEAD_TEXT, **{name: text[name] for name in FROM_TARGET}),
        backbone_hidden_size=teacher.config.hidden_size,
        use_ordered_embeddings=False,
        tie_word_embeddings=True,
    )
    return Gemma4AssistantForCausalLM(config).float().to(torch.get_default_device())


def lesson_loss(head: Any, read: Reading) -> Any:
    """Return the cross entropy between the head's drafts and the target's tokens, over all positions and steps."""
    inputs = first_inputs(read, torch.randperm(TEXTS * LENGTH))
    total = torch.zeros(())
    for step in range(STEPS):
        here = LENGTH - 1 - STEPS
        logits, state = draft(head, inputs, read.cache)
        answers = read.answers[:, 1 + step : 1 + step + here]
        total = total + torch.nn.functional.cross_entropy(logits[:, :here].flatten(0, 1), answers.flatten())
        following = torch.roll(read.embeddings, -2 - step, dims=1)
        inputs = torch.cat([following, state], dim=-1)
    return total / STEPS


def first_inputs(read: Reading, order: Any) -> Any:
    """Return the inputs of the first step: the next token's embedding and the target's state, from other positions."""
    following = torch.roll(read.embeddings, -1, dims=1)
    inputs = torch.cat([following, read.states[-1]], dim=-1)
    return inputs.flatten(0, 1)[order].reshape(inputs.shape)


def draft(head: Any, inputs: Any, cache: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return one step from every position at once: logits, and the state for the next step.

    `inputs` has texts by positions by (2 by the target's width). Each position sees the cache up to its own token, as
    when the target has read so far.
    """
    length = inputs.shape[1]
    causal = torch.full((length, length), float("-inf")).triu(1)[None, None]
    seen = head.model(
        inputs_embeds=head.pre_projection(inputs),
        attention_mask={"full_attention": causal, "sliding_attention": causal},
        position_ids=torch.arange(length)[None],
        shared_kv_states=cache,
        use_cache=False,
    ).last_hidden_state
    return head.lm_head(seen), head.post_projection(seen)


def restore_published_keys(config: Path, layer_types: list[str], target: Path) -> None:
    """Write the plain attributes that transformers 5.16 and newer puts into `per_layer_config`."""
    content = json.loads(config.read_text(encoding="utf-8"))
    text = json.loads((target / "config.json").read_text(encoding="utf-8"))["text_config"]
    content["text_config"].pop("per_layer_config", None)
    content["text_config"].update({name: text[name] for name in FROM_TARGET})
    content["text_config"].update(layer_types=layer_types, num_kv_shared_layers=HEAD_TEXT["num_kv_shared_layers"])
    config.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
