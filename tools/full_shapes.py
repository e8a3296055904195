"""Write checkpoints with the shapes of Gemma 4 31B and E2B, for measurements of memory.

    python3 full_shapes.py TINY OUT [--weights]

TINY is the folder `models`, which supplies tokenizer, processor and what the
published shapes lack.
OUT gets `target` and `draft` (BF16) and `target-nvfp4` and `draft-nvfp4` (every linear layer of the text model). They
are for `--load-format dummy`; with --weights the NVFP4 ones get weights of constant values, 25 GB. That needs torch and
the transformers that vLLM runs with.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from published.configs import config as published

NOT_QUANTIZED = [
    "lm_head", "*vision_tower*", "*audio_tower*", "*embed_vision*", "*embed_audio*", "*embed_tokens*",
]  # fmt: skip
NVFP4 = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
    "exclude_modules": NOT_QUANTIZED, "ignore": NOT_QUANTIZED,
}  # fmt: skip


def parts(size: str) -> dict[str, dict[str, Any]]:
    """Return the text model and the encoders of a published size, as in its config.json."""
    config = published(size)
    return {name: config[name] for name in ("text_config", "vision_config", "audio_config") if config[name]}


def write(source: Path, folder: Path, changes: dict[str, dict[str, Any]], quantization: dict[str, Any] | None) -> None:
    """Copy everything except the weights, and change these parts of config.json."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    for part, fields in changes.items():
        config[part].update(fields)
    if quantization:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield name, shape and "is quantized" of every tensor that transformers would save."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(folder)
    config.quantization_config = None
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for name, tensor in model.state_dict().items():
        left_alone = any(fnmatch.fnmatch(name, pattern) or pattern in name for pattern in NOT_QUANTIZED)
        if name != "lm_head.weight":  # tied to the embeddings
            yield name, tuple(tensor.shape), name in linear and not left_alone


def tensors(name: str, shape: tuple[int, ...], quantized: bool) -> dict[str, Any]:
    """Return the stored tensors of a weight: BF16, or NVFP4 with block scales and two tensor scales."""
    import torch

    if not quantized:
        return {name: torch.full(shape, 0.01, dtype=torch.bfloat16)}
    rows, columns = shape
    return {
        name: torch.full((rows, columns // 2), 0x21, dtype=torch.uint8),
        f"{name}_scale": torch.ones((rows, columns // 16)).to(torch.float8_e4m3fn),
        f"{name}_scale_2": torch.tensor(0.01),
        name.removesuffix("weight") + "input_scale": torch.tensor(0.01),
    }


def write_weights(folder: Path, shard_bytes: int = 4 * 10**9) -> None:
    """Write files of about `shard_bytes`, and the index that names them."""
    from safetensors.torch import save_file

    index: dict[str, str] = {}
    held: dict[str, Any] = {}

    def save() -> None:
        file = f"model-{len(set(index.values())) + 1:05}.safetensors"
        save_file(held, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(held, file))
        held.clear()

    for name, shape, quantized in shapes(folder):
        held |= tensors(name, shape, quantized)
        if sum(tensor.nbytes for tensor in held.values()) > shard_bytes:
            save()
    save()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tiny", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", action="store_true")
    options = parser.parse_args()
    target, draft = parts("31B"), parts("E2B")
    for ending, quantization in {"": None, "-nvfp4": NVFP4}.items():
        write(options.tiny / "tiny-target", options.out / f"target{ending}", target, quantization)
        write(options.tiny / "tiny-draft", options.out / f"draft{ending}", draft, quantization)
    if options.weights:
        write_weights(options.out / "target-nvfp4")
        write_weights(options.out / "draft-nvfp4")


if __name__ == "__main__":
    main()
