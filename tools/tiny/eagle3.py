"""tiny-eagle3: an EAGLE-3 head for tiny-target, in the speculators format (Eagle3LlamaForCausalLM in vLLM).

One Llama layer with its own KV cache. Its inputs are the embedding of the last token and the hidden states of three of
the target's layers; from its second token on, the state that it returned itself. It proposes tokens of a smaller
vocabulary (vllm/model_executor/models/llama_eagle3.py, 0.32.0).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny import plain
from tools.tiny.teacher import Reading, Teacher

TARGET_LAYERS = (1, 3, 4)
"""The hidden states that it reads: n means after the target's first n layers."""
DRAFT_VOCABULARY = 512
LAYER = "layers.0"
HEADS, KV_HEADS, SIZE, INNER = 4, 2, 32, 256


class Head(plain.Head):
    """The layer, its inputs and its output head."""

    def __init__(self, width: int, proposed: Any) -> None:
        sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "size": SIZE}
        matrices = {
            "fc": (width, len(TARGET_LAYERS) * width),
            **plain.block(LAYER, width=width, inputs=2 * width, inner=INNER, **sizes),
            "lm_head": (len(proposed), width),
        }
        norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
        super().__init__(matrices, {**{f"{LAYER}.{name}": width for name in norms}, "norm": width})
        self.proposed = proposed

    def combine(self, states: Any) -> Any:
        """Bring hidden states of the target's layers to the head's width."""
        return self.linear("fc", torch.cat([states[place] for place in TARGET_LAYERS], dim=-1))

    def forward(self, embeddings: Any, hidden: Any) -> tuple[Any, Any]:
        """Return logits over the proposed tokens, and the state for the next token."""
        both = [self.norm(f"{LAYER}.input_layernorm", embeddings), self.norm(f"{LAYER}.hidden_norm", hidden)]
        seen = hidden + self._attention(torch.cat(both, dim=-1))
        state = seen + self.mlp(f"{LAYER}.mlp", self.norm(f"{LAYER}.post_attention_layernorm", seen))
        return self.linear("lm_head", self.norm("norm", state)), state

    def _attention(self, inputs: Any) -> Any:
        parts = [plain.split(self.linear(f"{LAYER}.self_attn.{name}_proj", inputs), SIZE) for name in "qkv"]
        positions = torch.arange(inputs.shape[1])
        queries, keys = (plain.rotate(part, positions) for part in parts[:2])
        seen = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, parts[2], is_causal=True, enable_gqa=True
        )
        return self.linear(f"{LAYER}.self_attn.o_proj", seen.transpose(1, 2).flatten(-2))


def make(folder: Path, target: Path, seconds: float) -> None:
    """Write tiny-eagle3, trained on the model in `target`, into `folder`."""
    torch.manual_seed(3)
    teacher = Teacher(target)
    table = teacher.language_model.embed_tokens.weight
    head = Head(teacher.config.hidden_size, teacher.first_words(DRAFT_VOCABULARY))
    losses = (lesson_loss(head, teacher.read(), table) for _ in itertools.count())
    plain.learn(head, losses, seconds=seconds, rate=4e-3)
    save(folder, head, table, teacher)


def lesson_loss(head: Head, read: Reading, table: Any) -> Any:
    """Return the cross entropy of its first token, from the target's states, and of its second, from its own."""
    place = torch.full((table.shape[0],), -100)
    place[head.proposed] = torch.arange(len(head.proposed))
    answers, embeddings = place[read.answers], table[read.tokens]
    first, state = head(embeddings[:, 1:], head.combine(read.states)[:, :-1])
    second, _ = head(embeddings[:, 2:], state[:, :-1])
    pairs = ((first, answers[:, 1:]), (second, answers[:, 2:]))
    return sum(torch.nn.functional.cross_entropy(drafted.flatten(0, 1), said.flatten()) for drafted, said in pairs)


def save(folder: Path, head: Head, table: Any, teacher: Teacher) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    known = torch.zeros(table.shape[0], dtype=torch.bool)
    known[head.proposed] = True
    tensors = {
        **head.tensors(),
        "embed_tokens.weight": table.to(torch.bfloat16),
        "d2t": head.proposed - torch.arange(len(head.proposed)),
        "t2d": known,
    }
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE}
    layer = plain.transformer("llama", teacher, num_hidden_layers=1, intermediate_size=INNER, mlp_bias=False, **sizes)
    config = plain.speculators(
        "eagle3",
        architecture="Eagle3DraftModel",
        tokens=3,
        layer=layer,
        draft_vocab_size=len(head.proposed),
        target_hidden_size=teacher.config.hidden_size,
        norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=list(TARGET_LAYERS),
    )
    plain.save(folder, tensors, config, teacher)
