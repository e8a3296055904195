"""Building blocks for heads that transformers lacks, in plain torch: named weights, norms, rotary embedding."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny.teacher import Teacher

EPSILON = 1e-6
THETA = 10000.0


class Head(torch.nn.Module):  # type: ignore[misc]
    """Weights by the names that the checkpoint gives them, without `.weight`."""

    def __init__(self, matrices: Mapping[str, tuple[int, int]], norms: Mapping[str, int]) -> None:
        super().__init__()
        self._weights = torch.nn.ParameterDict()
        for name, shape in matrices.items():
            self._weights[_key(name)] = torch.nn.Parameter(torch.randn(shape) * shape[1] ** -0.5)
        for name, width in norms.items():
            self._weights[_key(name)] = torch.nn.Parameter(torch.ones(width))
        self._names = (*matrices, *norms)

    def linear(self, name: str, inputs: Any) -> Any:
        """Multiply by a matrix."""
        return torch.nn.functional.linear(inputs, self._weights[_key(name)])

    def norm(self, name: str, inputs: Any) -> Any:
        """Apply an RMS norm over the last axis."""
        return torch.nn.functional.rms_norm(inputs, inputs.shape[-1:], self._weights[_key(name)], eps=EPSILON)

    def mlp(self, name: str, inputs: Any) -> Any:
        """Apply a gated feed-forward block."""
        gate = torch.nn.functional.silu(self.linear(f"{name}.gate_proj", inputs))
        return self.linear(f"{name}.down_proj", gate * self.linear(f"{name}.up_proj", inputs))

    def tensors(self) -> dict[str, Any]:
        """Return the tensors that the checkpoint stores."""
        return {f"{name}.weight": self._weights[_key(name)].detach().to(torch.bfloat16) for name in self._names}


def _key(name: str) -> str:
    return name.replace(".", "/")


def block(
    layer: str, *, width: int, inputs: int, inner: int, heads: int, kv_heads: int, size: int
) -> dict[str, tuple[int, int]]:
    """Return the matrices of one decoder layer: rows and columns by name."""
    return {
        f"{layer}.self_attn.q_proj": (heads * size, inputs),
        f"{layer}.self_attn.k_proj": (kv_heads * size, inputs),
        f"{layer}.self_attn.v_proj": (kv_heads * size, inputs),
        f"{layer}.self_attn.o_proj": (width, heads * size),
        f"{layer}.mlp.gate_proj": (inner, width),
        f"{layer}.mlp.up_proj": (inner, width),
        f"{layer}.mlp.down_proj": (width, inner),
    }


def split(inputs: Any, size: int) -> Any:
    """Split texts by positions by width into texts by heads by positions by size."""
    return inputs.unflatten(-1, (-1, size)).transpose(1, 2)


def rotate(heads: Any, positions: Any) -> Any:
    """Apply the rotary embedding, halves side by side; `positions` is one axis, or texts by positions."""
    half = heads.shape[-1] // 2
    angles = positions[..., None] * THETA ** (-torch.arange(half) / half)
    angles = angles[:, None] if angles.dim() == 3 else angles
    first, second = heads[..., :half], heads[..., half:]
    turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    return torch.cat(turned, dim=-1)


def save(folder: Path, tensors: Mapping[str, Any], config: Mapping[str, Any], teacher: Teacher) -> None:
    """Write a head: its weights, its config.json and the target's tokenizer."""
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    teacher.give_tokenizer(folder)


def speculators(
    algorithm: str, *, architecture: str, tokens: int, layer: Mapping[str, Any], **own: Any
) -> dict[str, Any]:
    """Return a config.json in the format of the speculators library."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {"name_or_path": "tiny-target", "architectures": ["Gemma4ForConditionalGeneration"]}
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": dict(layer),
        **own,
    }


def transformer(kind: str, teacher: Teacher, **sizes: Any) -> dict[str, Any]:
    """Return the part of config.json that describes a head's layers."""
    return {
        "model_type": kind,
        "hidden_size": teacher.config.hidden_size,
        "vocab_size": teacher.config.vocab_size,
        "max_position_embeddings": teacher.config.max_position_embeddings,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 2,
        "eos_token_id": 1,
        **sizes,
    }


def learn(
    model: Any, losses: Iterator[Any], *, seconds: float, rate: float, told: Callable[[float], None] = lambda _: None
) -> None:
    """Improve a model for so long on one loss after the other; the rate rises for a tenth of the time, then falls."""
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=0.0, weight_decay=0.0)
    began = shown = time.monotonic()
    for number, loss in enumerate(losses):
        now = time.monotonic()
        done = (now - began) / seconds
        if done >= 1:
            break
        falling = 0.5 + 0.5 * math.cos(max(0.0, done - 0.1) / 0.9 * math.pi)
        optimizer.param_groups[0]["lr"] = rate * min(done * 10, falling)
        told(falling)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        if now - shown > 10:
            shown = now
            sys.stderr.write(f"{now - began:.0f} s, round {number}: {float(loss.detach()):.4f}\n")
