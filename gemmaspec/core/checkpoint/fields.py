"""Typed, range-checked access to untrusted JSON.

The header of a safetensors file: 8 bytes of length, then JSON with every tensor's type, shape and offsets.

Format: https://huggingface.co/docs/safetensors#format. The rules are those of the format's own reader: the header is an
object, tensors follow each other without gaps, and the last one ends at the end of the file.

How a checkpoint declares its quantization: `quantization_config` in config.json, or hf_quant_config.json.

They are read as vLLM reads them (vllm/model_executor/layers/quantization/modelopt.py, compressed_tensors, fp8.py;
0.32.0): the
entry in config.json wins; the separate file is ModelOpt's older format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from gemmaspec.core.checkpoint.parts import Quantization, Tensor
from gemmaspec.core.errors import CheckpointError

MOST_ITEMS: Final = 65_536
"""Maximum length of a list in a checkpoint's JSON."""
_LARGEST: Final = 2**40


def load_object(raw: bytes, where: str) -> dict[str, Any]:
    """Parse one JSON object.

    Raise CheckpointError, beginning with `where`, for anything else, including duplicate keys and deep nesting.
    """
    refuse_pointer(raw, where)
    try:
        content = json.loads(raw, object_pairs_hook=_once)
    except RecursionError:
        raise CheckpointError(f"{where}: nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, a duplicate key, a number with thousands of digits
        damaged = "it is damaged, no text: " if isinstance(error, UnicodeDecodeError) else "invalid JSON: "
        raise CheckpointError(f"{where}: {damaged}{printable(str(error))}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{where}: must be a JSON object, got {_kind(content)}")
    return content


def refuse_pointer(raw: bytes, where: str) -> None:
    """Raise CheckpointError if a file's beginning is that of a pointer of Git LFS.

    Its format: the specification of Git LFS, version 1.
    """
    if raw.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{where} is a pointer of Git LFS, not the file itself", hint="run git lfs pull in the checkpoint's folder"
        )


def printable(text: str, width: int = 200) -> str:
    """Return untrusted text made safe for a terminal."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"


class Fields:
    """One JSON object and its place; reading a value of the wrong type or size raises CheckpointError."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.content = content
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.content.get(name) is not None

    def count(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number; `default` if it is missing or null."""
        value = self.content.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number", value)
        if not least <= value <= _LARGEST:
            raise self._wrong(name, f"between {least} and {_LARGEST}", value)
        return value

    def maybe_count(self, name: str) -> int | None:
        """Return a whole number; None if it is missing or null."""
        return self.count(name) if name in self else None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false; `default` if it is missing or null."""
        value = self.content.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a printable string of at most 400 characters."""
        value = self.content.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value) > 400 or not value.isprintable():
            raise self._wrong(name, "a short text", value)
        return value

    def maybe_text(self, name: str) -> str | None:
        """Return a printable string; None if it is missing or null."""
        return self.text(name) if name in self else None

    def section(self, name: str) -> Fields | None:
        """Return an object inside this one; None if it is missing or null."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Fields(value, f"{self.where}: {name}" if ":" not in self.where else f"{self.where}.{name}")

    def items(self, name: str) -> list[Any]:
        """Return a list of bounded length; empty if it is missing or null."""
        value = self.content.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise self._wrong(name, f"a list of at most {MOST_ITEMS} entries", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of printable strings."""
        value = self.items(name)
        if not all(isinstance(item, str) and len(item) <= 400 and item.isprintable() for item in value):
            raise self._wrong(name, "a list of short texts", value)
        return tuple(value)

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers."""
        value = self.items(name)
        if not all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _LARGEST for item in value):
            raise self._wrong(name, "a list of whole numbers", value)
        return tuple(value)

    def _wrong(self, name: str, wanted: str, value: object) -> CheckpointError:
        if value is None:
            return CheckpointError(f"{self.where}: {name} is missing; it must be {wanted}")
        text = printable(json.dumps(value, default=str)[:300], 60)
        return CheckpointError(f"{self.where}: {name} must be {wanted}, got {text}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")


PREFIX: Final = 8
LONGEST: Final = 32 * 2**20
"""Maximum bytes of a header. A mixture of 128 experts that stores each expert's scales separately needs 7 MB."""
BITS: Final = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one element, by safetensors' name of the type."""
_DTYPE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,15}")


def header_length(prefix: bytes, *, file_size: int, where: str) -> int:
    """Return the number of bytes of JSON after the prefix. Raise CheckpointError if it is impossible."""
    refuse_pointer(prefix, where)
    if len(prefix) < PREFIX:
        raise CheckpointError(f"{where}: with {len(prefix)} bytes it is too short for a safetensors file")
    length = int.from_bytes(prefix[:PREFIX], "little")
    if length > LONGEST:
        raise CheckpointError(f"{where}: the header claims {length} bytes, more than the limit of {LONGEST}")
    if length < 2 or PREFIX + length > file_size:
        raise CheckpointError(f"{where}: the header claims {length} bytes in a file of {file_size}")
    return length


def parse_header(raw: bytes, *, file_size: int, where: str) -> tuple[Tensor, ...]:
    """Return the tensors of one file, in the order in which they are stored.

    Raise CheckpointError for an invalid header.
    """
    content = load_object(raw, where)
    content.pop("__metadata__", None)
    placed = sorted((_placed(name, entry, where) for name, entry in content.items()), key=lambda pair: pair[0])
    _check_places(placed, size=file_size - PREFIX - len(raw), where=where)
    return tuple(tensor for _, tensor in placed)


def _placed(name: str, entry: Any, where: str) -> tuple[int, Tensor]:
    """Return where a tensor begins, and the tensor."""
    where = f"{where}: {printable(name, 120)}"
    if not name.isprintable() or len(name) > 512:
        raise CheckpointError(f"{where}: invalid name of a tensor")
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where}: must be an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise CheckpointError(f"{where}: dtype is not a type of safetensors")
    shape = _numbers(entry.get("shape"), most=8)
    offsets = _numbers(entry.get("data_offsets"), most=2)
    if shape is None:
        raise CheckpointError(f"{where}: shape is not a list of sizes")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets must be two numbers, the beginning and the end")
    nbytes = offsets[1] - offsets[0]
    if dtype in BITS and math.prod(shape) * BITS[dtype] != nbytes * 8:
        raise CheckpointError(f"{where}: {dtype} of shape {list(shape)} does not take {nbytes} bytes")
    return offsets[0], Tensor(name=name, dtype=dtype, shape=shape, nbytes=nbytes)


def _numbers(value: Any, *, most: int) -> tuple[int, ...] | None:
    def is_size(item: Any) -> bool:
        return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**48

    return tuple(value) if isinstance(value, list) and len(value) <= most and all(map(is_size, value)) else None


def _check_places(placed: list[tuple[int, Tensor]], *, size: int, where: str) -> None:
    """Raise CheckpointError unless the tensors cover the file without gaps and overlaps."""
    for (start, tensor), expected in zip(placed, _ends(placed), strict=False):
        if start != expected:
            raise CheckpointError(
                f"{where}: {tensor.name} begins at {start}, but the previous tensor ends at {expected}"
            )
    end = sum(tensor.nbytes for _, tensor in placed)
    if end != size:
        why = "it is incomplete" if end > size else f"the last {size - end} bytes belong to no tensor"
        raise CheckpointError(f"{where}: the tensors need {end} bytes, but the file has {size} for them: {why}")


def _ends(placed: list[tuple[int, Tensor]]) -> Iterator[int]:
    end = 0
    for _, tensor in placed:
        yield end
        end += tensor.nbytes


AWQ: Final = "NVFP4_AWQ"
MIXED: Final = "MIXED_PRECISION"
WEIGHT_ONLY: Final = "W4A16_NVFP4"


def declared(config: Fields, separate: Fields | None) -> Quantization | None:
    """Return the checkpoint's declaration; None if it has none. Raise CheckpointError for wrong types."""
    text = config.section("text_config")
    section = config.section("quantization_config") or (text and text.section("quantization_config"))
    section = section or config.section("compression_config")  # compressed-tensors' older name for it
    if section is None:
        return _modelopt(separate, "hf_quant_config.json") if separate else None
    stated = _in_config(section)
    other = _modelopt(separate, "hf_quant_config.json").algorithm if separate else stated.algorithm
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
    return Quantization(
        method=method,
        algorithm=own.text("quant_algo", own.text("fmt", method)).upper(),
        group_size=own.maybe_count("group_size"),
        excluded=own.texts("modules_to_not_convert") or own.texts("ignored_layers"),
    )


def _modelopt(fields: Fields, file: str) -> Quantization:
    """Read ModelOpt's two forms: everything under `quantization`, or flat as in compressed-tensors."""
    inner = fields.section("quantization") or fields
    kv_cache = inner.maybe_text("kv_cache_quant_algo") or _kv_scheme(inner)
    return Quantization(
        method="modelopt",
        algorithm=inner.text("quant_algo", "unknown").upper(),
        kv_cache=kv_cache.upper() if kv_cache else None,
        group_size=inner.maybe_count("group_size") or _group_of(inner),
        excluded=inner.texts("exclude_modules") or inner.texts("ignore"),
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
    algorithms = {_scheme(group) for group in _groups(fields)}
    algorithm = next(iter(algorithms)) if len(algorithms) == 1 else MIXED
    return Quantization(
        method="compressed-tensors",
        algorithm=algorithm if algorithms else fields.text("format", "unknown"),
        kv_cache=_kv_scheme(fields),
        group_size=_group_of(fields),
        excluded=fields.texts("ignore"),
        of_groups=tuple(sorted(algorithms)),
    )


def _groups(fields: Fields) -> list[Fields]:
    table = fields.section("config_groups")
    if table is None:
        return []
    if len(table.content) > 256:
        raise CheckpointError(f"{table.where}: too many groups")
    return [group for name in table.content if (group := table.section(name))]


def _scheme(group: Fields) -> str:
    """Return ModelOpt's name for a group's weights and activations, if it has one."""
    weights, inputs = group.section("weights"), group.section("input_activations")
    if weights is None:
        return "unknown"
    kind, bits = weights.text("type", "int"), weights.count("num_bits", 8)
    if kind == "float" and bits == 4:
        return "NVFP4" if inputs else WEIGHT_ONLY
    if kind == "float":
        return f"FP{bits}" if inputs else f"FP{bits}_WEIGHT_ONLY"
    return f"W{bits}A{inputs.count('num_bits', 8) if inputs else 16}"


def _group_of(fields: Fields) -> int | None:
    sizes = [weights.maybe_count("group_size") for group in _groups(fields) if (weights := group.section("weights"))]
    return next((size for size in sizes if size), None)


def _kv_scheme(fields: Fields) -> str | None:
    scheme = fields.section("kv_cache_scheme")
    if scheme is None:
        return None
    kind = "FP" if scheme.text("type", "float") == "float" else "INT"
    return f"{kind}{scheme.count('num_bits', 8)}"
