"""tiny-dflash: a DFlash head for tiny-target, in the speculators format (DFlashQwen3ForCausalLM in vLLM).

Two layers that draft a whole block in one pass: the last token and a mask for each token to draft, which see each other
and, as keys and values, hidden states of three of the target's layers for all that it has read
(vllm/model_executor/models/qwen3_dflash.py, vllm/v1/spec_decode/dflash.py, 0.32.0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from gemmaspec.tiny import plain
from gemmaspec.tiny.teacher import LENGTH, TEXTS, Reading, Teacher

ROUNDS = 160
TOKENS = 4
"""Tokens of a block; its first place is the last token that is known."""
MASK = 4
"""Id of the token `<mask>`."""
TARGET_LAYERS = (1, 3, 5)
LAYERS = ("layers.0", "layers.1")
HEADS, KV_HEADS, SIZE, INNER = 4, 2, 32, 256


class Head(plain.Head):
    """The layers and their inputs. Embeddings are the target's."""

    def __init__(self, width: int, words: int) -> None:
        sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "size": SIZE}
        matrices = {"fc": (width, len(TARGET_LAYERS) * width), "lm_head": (words, width)}
        norms = {"hidden_norm": width, "norm": width}
        for layer in LAYERS:
            matrices |= plain.block(layer, width=width, inputs=width, inner=INNER, **sizes)
            norms |= {f"{layer}.input_layernorm": width, f"{layer}.post_attention_layernorm": width}
            norms |= {f"{layer}.self_attn.q_norm": SIZE, f"{layer}.self_attn.k_norm": SIZE}
        super().__init__(matrices, norms)

    def forward(self, embeddings: Any, states: Any, last: Any) -> Any:
        """Return the logits of a block's drafted tokens.

        `embeddings` has texts by 1 + TOKENS places, `states` the target's hidden states by place, `last` for each text
        the last position that the target has read.
        """
        context = self.norm("hidden_norm", self.linear("fc", torch.cat([states[n] for n in TARGET_LAYERS], dim=-1)))
        positions = last[:, None] + 1 + torch.arange(1 + TOKENS)
        hidden_states = torch.arange(context.shape[1]) > last[:, None]
        seen = torch.cat([~hidden_states, torch.ones(len(last), 1 + TOKENS, dtype=torch.bool)], dim=1)
        hidden = embeddings
        for layer in LAYERS:
            normed = self.norm(f"{layer}.input_layernorm", hidden)
            hidden = hidden + self._attention(f"{layer}.self_attn", normed, context, positions, seen[:, None, None])
            hidden = hidden + self.mlp(f"{layer}.mlp", self.norm(f"{layer}.post_attention_layernorm", hidden))
        return self.linear("lm_head", self.norm("norm", hidden[:, 1:]))

    def _attention(self, name: str, inputs: Any, context: Any, positions: Any, seen: Any) -> Any:
        both = torch.cat([context, inputs], dim=1)
        places = torch.cat([torch.arange(context.shape[1]).expand(len(inputs), -1), positions], dim=1)
        queries = self.norm(f"{name}.q_norm", plain.split(self.linear(f"{name}.q_proj", inputs), SIZE))
        keys = self.norm(f"{name}.k_norm", plain.split(self.linear(f"{name}.k_proj", both), SIZE))
        values = plain.split(self.linear(f"{name}.v_proj", both), SIZE)
        attended = torch.nn.functional.scaled_dot_product_attention(
            plain.rotate(queries, positions), plain.rotate(keys, places), values, attn_mask=seen, enable_gqa=True
        )
        return self.linear(f"{name}.o_proj", attended.transpose(1, 2).flatten(-2))


def make(folder: Path, target: Path) -> None:
    """Write tiny-dflash into `folder`, taught by the model in `target`."""
    torch.manual_seed(4)
    teacher = Teacher(target)
    table = teacher.language_model.embed_tokens.weight
    head = Head(teacher.config.hidden_size, teacher.config.vocab_size)
    plain.learn(head, lambda: lesson_loss(head, teacher.read(), table), rounds=ROUNDS, rate=4e-3)
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE}
    layer = plain.transformer("qwen3", teacher, num_hidden_layers=len(LAYERS), intermediate_size=INNER, **sizes)
    config = plain.speculators(
        "dflash",
        architecture="DFlashDraftModel",
        tokens=TOKENS,
        layer=layer,
        draft_vocab_size=teacher.config.vocab_size,
        target_hidden_size=teacher.config.hidden_size,
        mask_token_id=MASK,
        block_size=1 + TOKENS,
        aux_hidden_state_layer_ids=list(TARGET_LAYERS),
    )
    tensors = {**head.tensors(), "embed_tokens.weight": table.to(torch.bfloat16).contiguous()}
    plain.save(folder, tensors, config, teacher)


def lesson_loss(head: Head, read: Reading, table: Any) -> Any:
    """Return the cross entropy of the blocks that follow four random places of each text."""
    text = torch.arange(TEXTS).repeat(4)
    last = torch.randint(16, LENGTH - 2 - TOKENS, text.shape)
    ahead = last[:, None] + 1 + torch.arange(1 + TOKENS)
    block = read.tokens[text[:, None], ahead]
    block[:, 1:] = MASK
    drafted = head(table[block], [state[text] for state in read.states], last)
    said = read.answers[text[:, None], ahead[:, :-1]]
    return torch.nn.functional.cross_entropy(drafted.flatten(0, 1), said.flatten())
