"""Writes headers.json, the shapes that ship with gemmaspec; run it after a change of models.json or of what is here.

A row of it is a name with {} for the numbers in it, a type, a shape, and the numbers, so that a layer is said once.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from gemmaspec.core.checkpoint.published.shipped import DATA
from published import blocks, configs, qat, shapes
from published.shapes import Shapes

_LEFT: Final = ("lm_head", "vision_tower", "embed_vision", "audio_tower", "embed_audio")
"""What is never quantized, as parts of names."""
_TOWERS: Final = ("model.vision_", "model.embed_vision", "model.audio_tower", "model.embed_audio")


def headers() -> dict[str, Any]:
    """Return every published checkpoint's config.json and rows, by its id."""
    models = json.loads((DATA / "models.json").read_text(encoding="utf-8"))["models"]
    made = {one["ref"]: built(one) for one in models}
    return {ref: {"config": config, "tensors": rows(tensors)} for ref, (config, tensors) in made.items()}


def rows(tensors: Shapes) -> list[list[Any]]:
    """Return tensors as rows."""
    grouped: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for name, (dtype, shape) in tensors.items():
        numbers = tuple(int(one) for one in re.findall(r"(?<=\.)\d+(?=\.)", name))
        key = re.sub(r"(?<=\.)\d+(?=\.)", "{}", name), dtype, shape
        grouped.setdefault(key, []).append(numbers)
    found = []
    for (name, dtype, shape), numbers in grouped.items():
        each = [sorted(set(column)) for column in zip(*numbers, strict=True)]
        if sorted(numbers) != list(itertools.product(*each)):
            raise ValueError(f"{name} is not in every layer and expert of a rectangle")
        found.append([name, dtype, list(shape), *(_spelled(column) for column in each)])
    return found


def _spelled(numbers: Iterable[int]) -> str:
    """Return numbers as people write them: 3,7-9."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def built(known: Mapping[str, Any]) -> tuple[dict[str, Any], Shapes]:
    """Return config.json and the tensors of a row of models.json."""
    if known["kind"] == "assistant":
        config = configs.assistant_config(known["size"])
        return config, shapes.assistant_tensors(config)
    if known["kind"] == "eagle3":
        config = configs.eagle3_config()
        return config, shapes.eagle3_tensors(config)
    if known["kind"] in ("dflash2", "dspark"):
        config = configs.block_config(known["kind"])
        make = blocks.dflash2_tensors if known["kind"] == "dflash2" else blocks.dspark_tensors
        return config, make(config)
    config = configs.config(known["size"])
    if known["form"] in ("W4A16-QAT", "mobile-QAT"):
        return qat.built(known["form"], known["size"], config)
    stored = _quantized(known, shapes.tensors(config))
    if not known.get("towers", True):
        config = configs.config(known["size"], towers=False)
        stored = {name: shape for name, shape in stored.items() if not name.startswith(_TOWERS)}
    if known["form"] != "BF16":
        config["quantization_config"] = _declaration(known)
    return config, stored


def _quantized(known: Mapping[str, Any], plain: Shapes) -> Shapes:
    if known["form"] == "BF16":
        return plain
    if known["form"] == "FP8":
        return shapes.fp8(
            shapes.split_experts(plain) if known.get("method", "modelopt") == "compressed-tensors" else plain
        )
    if ".experts." in "".join(plain):
        return shapes.single_experts(plain)
    if known["form"] == "NVFP4-mlp":
        return shapes.nvfp4(plain, quantized=lambda name: shapes.is_decoder_linear(name) and ".mlp." in name)
    return shapes.nvfp4(plain, awq=known["form"] == "NVFP4-AWQ", inputs=known["form"] != "NVFP4A16")


def _declaration(known: Mapping[str, Any]) -> dict[str, Any]:
    parts = [*_LEFT, *(["self_attn"] if known["form"] == "NVFP4-mlp" else [])]
    left = [f"*{part}*" for part in parts]
    if known["form"] == "FP8" and known.get("method", "modelopt") == "compressed-tensors":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
        inputs = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
        return _compressed("float-quantized", weights, inputs, parts)
    if known["form"] == "FP8":
        return {"quant_method": "fp8", "ignored_layers": left}
    if known.get("method", "modelopt") == "compressed-tensors":
        weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        weights |= {"symmetric": True, "dynamic": False}
        both = None if known["form"] == "NVFP4A16" else {**weights, "dynamic": "local"}
        return _compressed("nvfp4-pack-quantized", weights, both, parts)
    algorithm = {"NVFP4A16": "W4A16_NVFP4", "NVFP4-AWQ": "NVFP4_AWQ"}.get(known["form"], "NVFP4")
    return {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16, "ignore": left}


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None, parts: list[str]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    left = [f"re:.*{part}.*" for part in parts]
    quantization = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"}
    return {**quantization, "config_groups": groups, "ignore": left}


def text() -> str:
    """Return headers.json: a line for each configuration and each row."""
    parts = []
    for ref, found in headers().items():
        lines = ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in found["tensors"])
        parts.append(f'{json.dumps(ref)}: {{"config": {json.dumps(found["config"])}, "tensors": [\n{lines}]}}')
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    (DATA / "headers.json").write_text(text(), encoding="utf-8")
