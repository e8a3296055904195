"""How a checkpoint declares its quantization: `quantization_config` in config.json, or hf_quant_config.json.

They are read as vLLM reads them (vllm/model_executor/layers/quantization/modelopt.py, compressed_tensors, fp8.py;
0.32.0): the
entry in config.json wins; the separate file is ModelOpt's older format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gemmaspec.core.checkpoint.fields import MOST_ITEMS, Fields
from gemmaspec.core.checkpoint.model import Quantization
from gemmaspec.core.errors import CheckpointError

AWQ: Final = "NVFP4_AWQ"
MIXED: Final = "MIXED_PRECISION"
WEIGHT_ONLY: Final = "W4A16_NVFP4"


def declared(config: Fields, separate: Fields | None) -> Quantization | None:
    """Return the checkpoint's declaration; None if it has none. Raise CheckpointError for wrong types."""
    text = config.section("text_config")
    section = config.section("quantization_config") or (text and text.section("quantization_config"))
    section = section or config.section("compression_config")  # compressed-tensors' older name for it
    if section is None:
        if separate:
            return _modelopt(separate, "hf_quant_config.json")
        return None
    stated = _in_config(section)
    if separate:
        other = _modelopt(separate, "hf_quant_config.json").algorithm
    else:
        other = stated.algorithm
    return replace(stated, contradicted_by=other if other != stated.algorithm else None)


def _in_config(own: Fields) -> Quantization:
    """Read `quantization_config`. Like vLLM, also detect ModelOpt by its producer (_normalize_quantization_config)."""
    producer = own.section("producer")
    if producer and producer.text("name", "") == "modelopt":
        return _modelopt(own, "config.json")
    method = own.text("quant_method", "compressed-tensors" if "config_groups" in own else "unknown").lower()
    method = method.replace("compressed_tensors", "compressed-tensors")  # as vLLM's ModelConfig does
    if method.startswith("modelopt"):
        return _modelopt(own, "config.json")
    if method == "compressed-tensors":
        return _compressed_tensors(own)
    algorithm = own.text("quant_algo", own.text("fmt", method))
    bits = own.count("bits", own.count("w_bit", 0))  # AWQ says w_bit
    return Quantization(
        method=method,
        algorithm=algorithm.upper(),
        group_size=_size_of_groups(own),
        bits=bits or None,
        symmetric=own.flag("sym", True),
        block=_block(own.counts("weight_block_size")),
        excluded=own.texts("modules_to_not_convert") or own.texts("ignored_layers"),
    )


def _modelopt(fields: Fields, file: str) -> Quantization:
    """Read ModelOpt's two forms: everything under `quantization`, or flat as in compressed-tensors."""
    inner = fields.section("quantization") or fields
    kv_cache = inner.maybe_text("kv_cache_quant_algo") or _kv_scheme(inner)
    excluded = inner.texts("exclude_modules") or inner.texts("ignore")
    return Quantization(
        method="modelopt",
        algorithm=inner.text("quant_algo", "unknown").upper(),
        kv_cache=kv_cache.upper() if kv_cache else None,
        group_size=inner.maybe_count("group_size") or _group_of(inner),
        excluded=excluded,
        by_layer=_by_layer(inner),
        declared_in=file,
    )


def _by_layer(fields: Fields) -> dict[str, str]:
    table = fields.section("quantized_layers")
    if table is None:
        return {}
    if len(table.content) > MOST_ITEMS:
        raise CheckpointError(f"{table.where}: too many layers")
    parts = {name: table.section(name) for name in table.content}
    return {name: part.text("quant_algo", "unknown").upper() for name, part in parts.items() if part}


def _compressed_tensors(fields: Fields) -> Quantization:
    algorithms = sorted({_scheme(group) for group in _groups(fields)})
    if not algorithms:
        algorithm = fields.text("format", "unknown")
    elif len(algorithms) == 1:
        algorithm = algorithms[0]
    else:
        algorithm = MIXED
    weights = list(_weights(fields))
    blocks = {_block(part.counts("block_structure")) for part in weights}
    group_sizes = {_size_of_groups(part) for part in weights}
    block = None
    if len(blocks) == 1:
        (block,) = blocks
    return Quantization(
        method="compressed-tensors",
        algorithm=algorithm,
        kv_cache=_kv_scheme(fields),
        group_size=_group_of(fields),
        several_group_sizes=len(group_sizes) > 1,
        block=block,
        excluded=fields.texts("ignore"),
        of_groups=tuple(algorithms),
    )


def _groups(fields: Fields) -> list[Fields]:
    table = fields.section("config_groups")
    if table is None:
        return []
    if len(table.content) > 256:
        raise CheckpointError(f"{table.where}: too many groups")
    groups = map(table.section, table.content)
    return [group for group in groups if group]


def _scheme(group: Fields) -> str:
    """Return ModelOpt's name for a group's weights and activations, if it has one.

    Integers are named as vLLM's classes are: W4A16, W2A8O8 with a scale for outputs too.
    """
    weights, inputs = group.section("weights"), group.section("input_activations")
    if weights is None:
        return "unknown"
    kind, bits = weights.text("type", "int"), weights.count("num_bits", 8)
    if kind == "float" and bits == 4:
        if inputs:
            return "NVFP4"
        return WEIGHT_ONLY
    if kind == "float":
        if inputs:
            return f"FP{bits}"
        return f"FP{bits}_WEIGHT_ONLY"
    outputs = group.section("output_activations")
    both = f"O{outputs.count('num_bits', 8)}" if outputs else ""
    return f"W{bits}A{inputs.count('num_bits', 8) if inputs else 16}{both}{_EMBEDDINGS if _embeds(group) else ''}"


_EMBEDDINGS: Final = " embeddings"


def _weights(fields: Fields) -> Iterator[Fields]:
    """Yield what each group says of its weights."""
    for group in _groups(fields):
        if weights := group.section("weights"):
            yield weights


def _embeds(group: Fields) -> bool:
    """Return whether a group is for tables of embeddings alone, which vLLM reads in its own way."""
    targets = group.texts("targets")
    named = [target for target in targets if target != "Embedding"]
    return bool(targets) and all("embed_tokens" in target for target in named)


def _group_of(fields: Fields) -> int | None:
    return next(filter(None, map(_size_of_groups, _weights(fields))), None)


def _size_of_groups(fields: Fields) -> int | None:
    """Return how many weights share a scale; None for -1, which GPTQ and AWQ write where a whole row shares one."""
    name = "group_size" if "group_size" in fields else "q_group_size"  # AutoAWQ's own name
    if fields.content.get(name) == -1:
        return None
    return fields.maybe_count(name)


def _block(sizes: tuple[int, ...]) -> tuple[int, int] | None:
    if len(sizes) == 2 and all(sizes):
        return (sizes[0], sizes[1])
    return None


def _kv_scheme(fields: Fields) -> str | None:
    scheme = fields.section("kv_cache_scheme")
    if scheme is None:
        return None
    if scheme.text("type", "float") == "float":
        kind = "FP"
    else:
        kind = "INT"
    return f"{kind}{scheme.count('num_bits', 8)}"
