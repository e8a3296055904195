"""tiny-eagle3: an EAGLE-3 head for tiny-target, in the speculators format (Eagle3LlamaForCausalLM in vLLM).

One Llama layer with a KV cache of its own. It gets the embedding of the last token beside hidden states of three of
the target's layers, from its second token on beside the state that it returned itself, and proposes tokens of a smaller
vocabulary (vllm/model_executor/models/llama_eagle3.py, 0.32.0). Written in plain torch, since transformers has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from gemmaspec.tiny.teacher import Reading, Teacher

ROUNDS = 80
TARGET_LAYERS = (1, 3, 4)
"""Places of the hidden states that it reads: before layer 1 is after layer 0, and so on."""
DRAFT_VOCABULARY = 512
LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 256, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip


class Head(torch.nn.Module):  # type: ignore[misc]
    """The layer, its inputs and its output head; parameters have the names of the checkpoint."""

    def __init__(self, width: int, proposed: Any) -> None:
        super().__init__()
        heads, kv_heads, size = (LLAMA[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        inner = LLAMA["intermediate_size"]
        rows = {
            "fc": (width, len(TARGET_LAYERS) * width),
            "layers.0.self_attn.q_proj": (heads * size, 2 * width),
            "layers.0.self_attn.k_proj": (kv_heads * size, 2 * width),
            "layers.0.self_attn.v_proj": (kv_heads * size, 2 * width),
            "layers.0.self_attn.o_proj": (width, heads * size),
            "layers.0.mlp.gate_proj": (inner, width),
            "layers.0.mlp.up_proj": (inner, width),
            "layers.0.mlp.down_proj": (width, inner),
            "lm_head": (len(proposed), width),
        }
        norms = ("layers.0.hidden_norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
        self.weights = torch.nn.ParameterDict(
            {_key(name): torch.nn.Parameter(torch.randn(shape) * shape[1] ** -0.5) for name, shape in rows.items()}
        )
        self.weights.update({_key(name): torch.nn.Parameter(torch.ones(width)) for name in norms})
        self.names = (*rows, *norms)
        self.proposed = proposed

    def combine(self, states: Any) -> Any:
        """Hidden states of the target's layers to the head's width."""
        return self._linear("fc", torch.cat([states[place] for place in TARGET_LAYERS], dim=-1))

    def forward(self, embeddings: Any, hidden: Any) -> tuple[Any, Any]:
        """Logits over the proposed tokens, and the state for the next token."""
        layer = "layers.0"
        both = [self._norm(f"{layer}.input_layernorm", embeddings), self._norm(f"{layer}.hidden_norm", hidden)]
        seen = hidden + self._attention(torch.cat(both, dim=-1))
        normed = self._norm(f"{layer}.post_attention_layernorm", seen)
        gate = torch.nn.functional.silu(self._linear(f"{layer}.mlp.gate_proj", normed))
        state = seen + self._linear(f"{layer}.mlp.down_proj", gate * self._linear(f"{layer}.mlp.up_proj", normed))
        return self._linear("lm_head", self._norm("norm", state)), state

    def _attention(self, inputs: Any) -> Any:
        parts = [self._linear(f"layers.0.self_attn.{name}_proj", inputs) for name in "qkv"]
        queries, keys, values = (part.unflatten(-1, (-1, LLAMA["head_dim"])).transpose(1, 2) for part in parts)
        seen = torch.nn.functional.scaled_dot_product_attention(
            _rotate(queries), _rotate(keys), values, is_causal=True, enable_gqa=True
        )
        return self._linear("layers.0.self_attn.o_proj", seen.transpose(1, 2).flatten(-2))

    def _linear(self, name: str, inputs: Any) -> Any:
        return torch.nn.functional.linear(inputs, self.weights[_key(name)])

    def _norm(self, name: str, inputs: Any) -> Any:
        return torch.nn.functional.rms_norm(inputs, inputs.shape[-1:], self.weights[_key(name)], eps=1e-6)

    def tensors(self) -> dict[str, Any]:
        """What the checkpoint holds of it."""
        return {f"{name}.weight": self.weights[_key(name)].detach().to(torch.bfloat16) for name in self.names}


def _key(name: str) -> str:
    return name.replace(".", "/")


def _rotate(heads: Any) -> Any:
    """Rotary embedding of texts by heads by positions by size, halves side by side as Llama has it."""
    half = heads.shape[-1] // 2
    speeds = LLAMA["rope_theta"] ** (-torch.arange(half) / half)
    angles = torch.arange(heads.shape[2])[:, None] * speeds
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def make(folder: Path, target: Path) -> None:
    """Write tiny-eagle3 into `folder`, taught by the model in `target`."""
    torch.manual_seed(3)
    teacher = Teacher(target)
    width, table = teacher.config.hidden_size, teacher.language_model.embed_tokens.weight
    proposed = teacher.first_words(DRAFT_VOCABULARY)
    head = Head(width, proposed)
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(ROUNDS):
        loss = lesson_loss(head, teacher.read(), table)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(folder, head, table, teacher)


def lesson_loss(head: Head, read: Reading, table: Any) -> Any:
    """Cross entropy of its first token, drafted from the target's states, and of its second, from its own."""
    place = torch.full((table.shape[0],), -100)
    place[head.proposed] = torch.arange(len(head.proposed))
    answers, embeddings = place[read.answers], table[read.tokens]
    first, state = head(embeddings[:, 1:], head.combine(read.states)[:, :-1])
    second, _ = head(embeddings[:, 2:], state[:, :-1])
    pairs = ((first, answers[:, 1:]), (second, answers[:, 2:]))
    return sum(torch.nn.functional.cross_entropy(drafted.flatten(0, 1), said.flatten()) for drafted, said in pairs)


def save(folder: Path, head: Head, table: Any, teacher: Teacher) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    words = table.shape[0]
    known = torch.zeros(words, dtype=torch.bool)
    known[head.proposed] = True
    tensors = {
        **head.tensors(),
        "embed_tokens.weight": table.to(torch.bfloat16).contiguous(),
        "d2t": head.proposed - torch.arange(len(head.proposed)),
        "t2d": known,
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    width = teacher.config.hidden_size
    layer = {
        **LLAMA, "hidden_size": width, "vocab_size": words, "torch_dtype": "bfloat16",
        "max_position_embeddings": teacher.config.max_position_embeddings,
    }  # fmt: skip
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    config = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
        "draft_vocab_size": len(head.proposed), "target_hidden_size": width, "torch_dtype": "bfloat16",
        "norm_before_residual": False, "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(TARGET_LAYERS), "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [proposal],
            "verifier": {"name_or_path": "tiny-target", "architectures": ["Gemma4ForConditionalGeneration"]},
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    teacher.give_tokenizer(folder)
