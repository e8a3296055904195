"""Small checkpoints of Gemma 4 with whole safetensors files, and the changes that make odd ones of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from published.configs import block_config
from published.shapes import fp8, split_experts

from tests.support import shapes

Change = Callable[["Small"], "Small"]
TOKENS = shapes.tokenizer(more=9)
WIDTH, INNER, EXPERTS, EXPERT_INNER, WORDS = 256, 384, 8, 192, 1024


@dataclass(frozen=True)
class Small:
    """config.json and tensors of one checkpoint."""

    config: dict[str, Any]
    tensors: shapes.Shapes
    drafts: bool = False
    separate: Mapping[str, Any] | None = field(default=None)

    def write(self, folder: Path) -> Path:
        """Write it as a folder; a draft has no tokenizer of its own."""
        tokens = None if self.drafts else TOKENS
        return shapes.write(folder, shapes.model(self.config, self.tensors, tokens=tokens, separate=self.separate))


_SMALL_TOWER = {**shapes.config("31B")["vision_config"], "num_hidden_layers": 1}


def _made(size: str, **changes: Any) -> Small:
    config = shapes.config(size, towers=False)
    text = config["text_config"]
    text.update(
        hidden_size=WIDTH, intermediate_size=INNER, vocab_size=WORDS, num_hidden_layers=6,
        layer_types=["sliding_attention"] * 5 + ["full_attention"], num_attention_heads=4,
        head_dim=64, global_head_dim=128, num_key_value_heads=2,
    )  # fmt: skip
    text.update(changes)
    return Small(config, shapes.tensors({**config, "vision_config": _SMALL_TOWER, "audio_config": None}))


def dense() -> Small:
    """A decoder like the 31B's."""
    return _text_alone(_made("31B", num_global_key_value_heads=1))


def mixture() -> Small:
    """A mixture of eight experts, stored together."""
    sizes = {"num_experts": EXPERTS, "moe_intermediate_size": EXPERT_INNER, "top_k_experts": 2}
    return _text_alone(_made("26B-A4B", num_global_key_value_heads=1, **sizes))


def split() -> Small:
    """The mixture, with its experts stored one by one."""
    small = mixture()
    return replace(small, tensors=split_experts(small.tensors))


def per_layer() -> Small:
    """A decoder with embeddings for each layer, whose last three layers read the cache of others."""
    sizes = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": WORDS, "num_kv_shared_layers": 3}
    kinds = [*["sliding_attention"] * 2, "full_attention"] * 2
    return _text_alone(_made("E2B", layer_types=kinds, **sizes))


def _text_alone(small: Small) -> Small:
    tensors = {name: shape for name, shape in small.tensors.items() if "vision" not in name}
    return replace(small, tensors=tensors)


def assistant(*, ordered: bool = False) -> Small:
    """An MTP draft; `ordered`: one that scores the tokens of the nearest centroids alone."""
    config = shapes.assistant_config("E2B" if ordered else "31B")
    config["text_config"]["vocab_size"] = 2048 if ordered else WORDS
    return Small(config, shapes.assistant_tensors(config), drafts=True)


def eagle() -> Small:
    """An EAGLE-3 head, which proposes 32,000 tokens of 262,144."""
    config = shapes.eagle3_config()
    return Small(config, shapes.eagle3_tensors(config), drafts=True)


def block() -> Small:
    """The config of a DSpark head, and what it must store of the target's."""
    config = block_config("dspark")
    width, reads = config["target_hidden_size"], len(config["aux_hidden_state_layer_ids"])
    tensors: shapes.Shapes = {"fc.weight": ("BF16", (width, reads * width))}
    tensors["lm_head.weight"] = ("BF16", (config["draft_vocab_size"], width))
    tensors["d2t"] = ("I64", (config["draft_vocab_size"],))
    return Small(config, tensors, drafts=True)


def nvfp4(small: Small) -> Small:
    """Its linear layers in ModelOpt's NVFP4."""
    return replace(small, tensors=shapes.nvfp4(small.tensors), separate=shapes.modelopt())


def fp8_channels(small: Small) -> Small:
    """Its linear layers in FP8 with a scale for each output."""
    weights = {"type": "float", "num_bits": 8, "strategy": "channel"}
    declared = _groups({"weights": weights, "input_activations": {"type": "float", "num_bits": 8}})
    return declaring(replace(small, tensors=fp8(small.tensors)), declared)


def fp8_blocks(small: Small, *, side: int = 128, scales: bool = True, method: str = "fp8") -> Small:
    """Its linear layers in FP8 with a scale for each block of `side` x `side`, declared as 128 x 128."""
    tensors: shapes.Shapes = {}
    name_of_scale = "weight_scale_inv" if method == "fp8" else "weight_scale"
    for name, (dtype, shape) in small.tensors.items():
        if not _is_linear(name):
            tensors[name] = (dtype, shape)
            continue
        tensors[name] = ("F8_E4M3", shape)
        if scales:
            tensors[f"{name.removesuffix('weight')}{name_of_scale}"] = ("F32", tuple(-(-one // side) for one in shape))
    if method == "fp8":
        return declaring(replace(small, tensors=tensors), {"quant_method": "fp8", "weight_block_size": [128, 128]})
    weights = {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}
    declared = _groups({"weights": weights, "input_activations": {"type": "float", "num_bits": 8}})
    return declaring(replace(small, tensors=tensors), declared)


def awq(small: Small, *, group: int = 64, declared: int | None = None) -> Small:
    """Its linear layers as AutoAWQ stores them."""
    tensors: shapes.Shapes = {}
    for stem, rows, columns in _linears(small, tensors):
        groups = -(-columns // group)
        tensors[f"{stem}.qweight"] = ("I32", (columns, rows // 8))
        tensors[f"{stem}.qzeros"] = ("I32", (groups, rows // 8))
        tensors[f"{stem}.scales"] = ("BF16", (groups, rows))
    own = {"quant_method": "awq", "bits": 4, "group_size": declared or group, "version": "gemm"}
    return declaring(replace(small, tensors=tensors), own)


def gptq(small: Small, *, bits: int = 4, group: int = 64, declared: int | None = None) -> Small:
    """Its linear layers as GPTQ stores them; `group` -1: one scale for a whole row."""
    tensors: shapes.Shapes = {}
    for stem, rows, columns in _linears(small, tensors):
        groups = 1 if group == -1 else -(-columns // group)
        tensors[f"{stem}.qweight"] = ("I32", (columns * bits // 32, rows))
        tensors[f"{stem}.scales"] = ("BF16", (groups, rows))
        tensors[f"{stem}.g_idx"] = ("I32", (columns,))
    own = {"quant_method": "gptq", "bits": bits, "group_size": declared or group, "sym": True, "desc_act": False}
    return declaring(replace(small, tensors=tensors), own)


def packed(small: Small, *, group: int = 32, declared: int | None = None) -> Small:
    """Its linear layers as compressed-tensors packs four bits."""
    tensors: shapes.Shapes = {}
    for stem, rows, columns in _linears(small, tensors):
        tensors[f"{stem}.weight_packed"] = ("I32", (rows, columns // 8))
        tensors[f"{stem}.weight_scale"] = ("BF16", (rows, columns // group))
        tensors[f"{stem}.weight_shape"] = ("I64", (2,))
    weights = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": declared or group}
    return declaring(replace(small, tensors=tensors), _groups({"weights": weights}))


def _linears(small: Small, rest: shapes.Shapes) -> list[tuple[str, int, int]]:
    """Return module, rows and columns of the linear layers, and put everything else into `rest`."""
    found = []
    for name, (dtype, shape) in small.tensors.items():
        if _is_linear(name):
            found.append((name.removesuffix(".weight"), *shape))
        else:
            rest[name] = (dtype, shape)
    return found


def _is_linear(name: str) -> bool:
    return shapes.is_decoder_linear(name) and ".router." not in name


def _groups(scheme: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], **scheme}},
        "ignore": ["re:.*router.*", "lm_head"],
    }


def declaring(small: Small, quantization: Mapping[str, Any]) -> Small:
    """It with this quantization_config."""
    return replace(small, config={**small.config, "quantization_config": dict(quantization)})


def without(*parts: str) -> Change:
    """Return a change that leaves out the tensors with one of these in their name."""
    return lambda small: replace(
        small, tensors={name: shape for name, shape in small.tensors.items() if not any(part in name for part in parts)}
    )


def with_shape(end: str, *shape: int) -> Change:
    """Return a change that gives the tensors with such an end another shape."""

    def change(small: Small) -> Small:
        changed = {name: (kind, shape) for name, (kind, _) in small.tensors.items() if name.endswith(end)}
        assert changed
        return replace(small, tensors={**small.tensors, **changed})

    return change


def with_text(**values: Any) -> Change:
    """Return a change of the text_config, not of the tensors."""

    def change(small: Small) -> Small:
        config = copy.deepcopy(small.config)
        config["text_config"].update(values)
        return replace(small, config=config)

    return change


def untied(rows: int | None) -> Change:
    """Return a change that unties the output head, and stores one of so many rows, or none."""

    def change(small: Small) -> Small:
        tied, free = '"tie_word_embeddings": true', '"tie_word_embeddings": false'
        config = json.loads(json.dumps(small.config).replace(tied, free))
        head = {"lm_head.weight": ("BF16", (rows, WIDTH))} if rows else {}
        return replace(small, config=config, tensors={**small.tensors, **head})

    return change


def declared_as(other: Small) -> Change:
    """Return a change that takes another checkpoint's quantization_config."""
    return lambda small: declaring(small, other.config["quantization_config"])


def declaring_besides(**values: object) -> Change:
    """Return a change of the declared quantization alone."""
    return lambda small: declaring(small, {**small.config["quantization_config"], **values})


def below_moe(small: Small) -> Small:
    """It with its experts under the name that vLLM's own modules once had."""
    tensors = {name.replace(".experts.", ".moe.experts."): shape for name, shape in small.tensors.items()}
    return replace(small, tensors=tensors)
