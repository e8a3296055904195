"""Writes a tiny Gemma 4 in the form of Google's W4A16: INT4, groups of 32, a head of its own, exact names in `ignore`.

Run with a Python that has torch and safetensors: tiny_qat.py SOURCE FOLDER. As tools/published/qat.py says that the
published files are. The towers and the embeddings stay in BF16, and a matrix of fewer than 32 rows or columns too.
"""

# mypy: ignore-errors
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
_MOST = 7


def written(source: Path, folder: Path) -> None:
    """Copy a checkpoint, with its decoder's linear layers in four bits."""
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    packed: dict[str, torch.Tensor] = {}
    left = []
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if not is_linear(name, tensor):
            packed[name] = tensor
        elif ".language_model." in name and not any(side % GROUP for side in tensor.shape):
            packed.update(in_four_bits(module, tensor))
        else:
            packed[name] = tensor
            left.append(module)
    (table,) = (tensor for name, tensor in tensors.items() if name.endswith(".embed_tokens.weight"))
    packed["lm_head.weight"] = table.clone()
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = declaration([*left, "lm_head"])
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def is_linear(name: str, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the matrix of a linear layer."""
    return name.endswith(".weight") and tensor.dim() == 2 and "embed_tokens" not in name and "position" not in name


def in_four_bits(module: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what pack-quantized stores of one matrix: eight weights in an int32, and a scale for each group of a row."""
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // GROUP, GROUP)
    scale = (groups.abs().amax(-1, keepdim=True) / _MOST).clamp(min=1e-8).to(torch.bfloat16)
    values = (groups / scale.float()).round().clamp(-_MOST - 1, _MOST).to(torch.int64).reshape(rows, columns) + 8
    shifts = torch.arange(0, 32, 4)
    words = (values.reshape(rows, columns // 8, 8) << shifts).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return {
        f"{module}.weight_packed": words,
        f"{module}.weight_scale": scale[..., 0].contiguous(),
        f"{module}.weight_shape": torch.tensor([rows, columns]),
    }


def declaration(ignore: list[str]) -> dict:
    """Return quantization_config."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
    }


if __name__ == "__main__":
    written(Path(sys.argv[1]), Path(sys.argv[2]))
