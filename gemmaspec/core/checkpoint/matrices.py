"""The matrices of a model's decoder layers, as one GPU multiplies tokens with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gemmaspec.core.checkpoint.model import Checkpoint, TextModel
from gemmaspec.core.checkpoint.stored import stored


def nvfp4_matrices(model: Checkpoint, *, tensor_parallel: int) -> Mapping[tuple[int, int], int]:
    """Return in how many layers each NVFP4 matrix is, by N and K, joined as vLLM joins them (gemma4.py).

    None of experts, and none whose groups have another size than 16, which the patch for Humming leaves alone.
    """
    text, quantization = model.text, model.quantization
    if text.experts or not quantization or quantization.group_size != 16:
        return {}
    modules = stored(model.tensors).formats.get("NVFP4", ())
    quantized = {module.rpartition(".")[2] for module in modules}
    shapes: Counter[tuple[int, int]] = Counter()
    for layer in text.layers:
        inner, heads = text.inner(layer) // tensor_parallel, layer.heads // tensor_parallel
        joined = heads + 2 * max(1, layer.kv_heads // tensor_parallel)
        of_layer = {
            "gate_proj": (2 * inner, text.hidden_size),
            "down_proj": (text.hidden_size, inner),
            "q_proj": (joined * layer.head_dim, text.hidden_size),
            "o_proj": (text.hidden_size, heads * layer.head_dim),
        }
        shapes.update(shape for name, shape in of_layer.items() if name in quantized)
    return dict(sorted(shapes.items()))


def weights_per_token(text: TextModel) -> int:
    """Return by how many weights of its layers a model multiplies each token."""
    routed = 3 * text.experts_per_token * text.expert_inner * text.hidden_size
    weights = 0
    for layer in text.layers:
        heads = 2 * layer.heads + layer.kv_heads * (1 if layer.keys_are_values else 2)
        weights += text.hidden_size * (heads * layer.head_dim + 3 * text.inner(layer)) + routed
    return weights
