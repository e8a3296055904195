"""Compare the declared quantization of a checkpoint with its stored tensors.

Effects are those of vLLM's loaders (vllm/model_executor/layers/quantization/modelopt.py, kv_cache.py; 0.19.0 to
0.33.0)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

from gemmaspec.check.inspect.groups import group_findings
from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.fields import printable
from gemmaspec.core.checkpoint.model import Checkpoint, Quantization
from gemmaspec.core.checkpoint.quantization import AWQ, MIXED, WEIGHT_ONLY
from gemmaspec.core.checkpoint.stored import Stored, part_of, stored
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.bugs import error_text
from gemmaspec.core.releases.facts import knows_method, newest, spans

_PACKED: Final = ("NVFP4", "MXFP4", "MXFP8", "FP8", "INT2", "INT3", "INT4", "INT5", "INT6", "INT7", "INT8")
_FAMILY: Final = {
    "NVFP4": "NVFP4",
    AWQ: "NVFP4",
    WEIGHT_ONLY: "NVFP4",
    "AWQ": "INT4",
    "GPTQ": "INT4",
}
"""Declared algorithm → the format that its modules are stored in, where that is not the algorithm's own beginning."""
_PLAIN: Final = ("BF16", "F16", "F32")
_PACKING: Final = ("auto-round", "inc", "torchao", "bitsandbytes", "hqq")
"""Methods whose linear layers are never stored as plain matrices, and whose algorithm names no format."""
_LINEAR: Final = re.compile(r"\.(?:[qkvo]|gate|up|down)_proj$")


def quantization_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield every finding about a checkpoint's quantization."""
    yield from _method(checkpoint)
    yield from _form(checkpoint)
    weights = stored(checkpoint.tensors, checkpoint.text)
    for rule in (_types, _contradicted, _declared, _mixed, _packed, _unquantized):
        yield from rule(checkpoint, weights)
    yield from scale_findings(checkpoint, weights)
    yield from group_findings(checkpoint)


def stored_as(algorithm: str) -> str:
    """Return the format in which an algorithm's modules are stored."""
    integer = re.fullmatch(r"W([2-8])A(?:8|16)(?:O8)?(?: embeddings)?", algorithm)
    if integer:
        return f"INT{integer[1]}"
    if algorithm in _FAMILY:
        return _FAMILY[algorithm]
    return next((packed for packed in _PACKED if algorithm.startswith(packed)), algorithm)


def is_excluded(module: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a pattern excludes a module: exact, a wildcard, a part of the name, or `re:` and an expression.

    As vLLM's ModelOpt and compressed-tensors classes match them.
    """
    for pattern in patterns:
        if pattern.startswith("re:"):
            if _matches(pattern[3:], module):
                return True
        elif pattern in module or fnmatchcase(module, pattern):
            return True
    return False


def _matches(expression: str, module: str) -> bool:
    """Return whether an untrusted expression is simple, because others could run forever."""
    if not re.fullmatch(r"[\w.*\\|^$-]{1,200}", expression) or expression.count("*") > 3:
        return False
    return re.match(expression, module) is not None


def _types(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    if parts.count("NVFP4"):
        found = {tensor.dtype for tensor in checkpoint.tensors}
        types = ", ".join(sorted(found))
        yield finding(
            "nvfp4-types",
            f"stored types {types} are how NVFP4 looks in a file: U8 holds two 4-bit weights, F8_E4M3 the "
            "scale of 16 of them, BF16 what is not quantized",
        )


def _method(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield a method that vLLM does not have, or has no longer."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.method == "unknown" or knows_method(quantization.method, newest()):
        return
    span = spans("quantization", quantization.method)
    yield finding(
        "quantization-unknown",
        f"{quantization.declared_in} declares the quantization {printable(quantization.method, 40)}, "
        f"which vLLM {newest()} does not know{f' (known {span})' if span else ''}",
        fix="use a release that knows it, or another checkpoint" if span else "use another checkpoint",
        method=printable(quantization.method, 40),
    )


def _declared(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    quantization = checkpoint.quantization
    if quantization is None or not checkpoint.tensors or quantization.algorithm in (None, MIXED):
        return
    kind = stored_as(quantization.algorithm)
    linear = [name for name in chain.from_iterable(parts.formats.values()) if _is_linear(name)]
    if quantization.method in _PACKING and linear and len(_plain(parts)) == len(linear):
        yield finding(
            "declared-not-stored",
            f"{quantization.declared_in} declares {quantization.method}, but every linear layer of the decoder "
            f"is stored unquantized ({_counts(parts)})",
        )
    elif kind in _PACKED and not parts.count(kind):
        yield finding(
            "declared-not-stored",
            f"{quantization.declared_in} declares {quantization.algorithm}, but no module is stored as {kind} "
            f"({_counts(parts)})",
            impact="vLLM makes packed parameters that nothing fills; from 0.30.0 on it says: NVFP4 weight_scale for "
            "layer … was never loaded (still NaN)."
            if kind == "NVFP4"
            else "vLLM makes parameters whose scales stay empty.",
        )


_FORMS: Final = {
    "qweight": ("awq", "gptq", "auto_awq", "auto_gptq", "awq_marlin", "gptq_marlin"),
    "weight_packed": ("compressed-tensors",),
}
"""Name of a packed matrix → the methods whose layers vLLM gives such a parameter."""


def _form(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield packed matrices under the name of another method's parameter."""
    quantization = checkpoint.quantization
    method = quantization.method if quantization else None
    if quantization is None or method not in {*chain.from_iterable(_FORMS.values())}:
        return
    for leaf, methods in _FORMS.items():
        other = [tensor.name for tensor in checkpoint.tensors if tensor.name.endswith(f".{leaf}")]
        if other and method not in methods:
            yield finding(
                "declared-not-stored",
                f"{quantization.declared_in} declares {method}, but {len(other)} matrices are stored as {leaf}, "
                f"the form of {' and '.join(methods[:2])}: {other[0]}",
                impact="vLLM makes parameters of other names, and nothing fills them.",
            )


def _mixed(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield findings on a MIXED_PRECISION checkpoint, whose modules each have their own algorithm."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.algorithm != MIXED:
        return
    if quantization.method != "modelopt":
        yield from _groups(checkpoint, quantization, parts)
        return
    if not quantization.by_layer:
        yield finding(
            "mixed-without-layers", f"{quantization.declared_in} declares {MIXED} and lists no quantized_layers"
        )
    if AWQ in quantization.by_layer.values():
        yield finding("mixed-awq", f"some modules of a {MIXED} checkpoint are {AWQ}")
    kinds: dict[str, str] = {}
    for kind, modules in parts.formats.items():
        kinds |= dict.fromkeys(modules, kind)
    wrong = []
    for module, algorithm in quantization.by_layer.items():
        if module in kinds and kinds[module] != stored_as(algorithm):
            wrong.append((module, algorithm, kinds[module]))
    if wrong:
        module, algorithm, kind = wrong[0]
        yield finding(
            "mixed-differs",
            f"{len(wrong)} modules are not stored as declared; {module} is declared {algorithm} and stored as {kind}",
        )


def _groups(checkpoint: Checkpoint, quantization: Quantization, parts: Stored) -> Iterator[Finding]:
    """Yield the groups of compressed-tensors in whose format no module is stored."""
    if not checkpoint.tensors:
        return
    for algorithm in quantization.of_groups:
        kind = stored_as(algorithm)
        if kind in _PACKED and not parts.count(kind, "INT8"):
            yield finding(
                "declared-not-stored",
                f"{quantization.declared_in} declares a group of {algorithm}, but no module is stored as {kind} "
                f"({_counts(parts)})",
            )


def _contradicted(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    quantization = checkpoint.quantization
    if quantization and quantization.contradicted_by:
        yield finding(
            "declarations-differ",
            f"config.json declares {quantization.algorithm}, hf_quant_config.json "
            f"{quantization.contradicted_by} ({_counts(parts)})",
        )


def _packed(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    kinds = [kind for kind in _PACKED if parts.count(kind)]
    if checkpoint.quantization is None and kinds:
        yield finding(
            "stored-not-declared",
            f"{parts.count(*kinds)} modules are stored as {', '.join(kinds)}, but neither config.json nor "
            "hf_quant_config.json declares a quantization",
        )


def _unquantized(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield linear layers of the decoder that are BF16 without an excluding pattern."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.algorithm == MIXED or not parts.count(*_PACKED):
        return
    named = [name for name in _plain(parts) if not is_excluded(name, quantization.excluded)]
    wrong = [name for name in named if not _unread(checkpoint, name)]
    if wrong:
        yield finding(
            "unquantized-not-excluded",
            f"{len(wrong)} linear layers of the decoder are not quantized, and no pattern excludes them: "
            f"{', '.join(wrong[:2])}{' …' if len(wrong) > 2 else ''}",
        )


def _is_linear(module: str) -> bool:
    return part_of(module) == "decoder layers" and _LINEAR.search(module) is not None


def _unread(checkpoint: Checkpoint, module: str) -> bool:
    """Return whether a module belongs to the unused keys and values of a layer that shares another's cache."""
    match = re.search(r"\.layers\.(\d{1,4})\.self_attn\.[kv]_proj$", module)
    layers = checkpoint.text.layers
    return match is not None and int(match[1]) < len(layers) and layers[int(match[1])].shares_with is not None


def _plain(parts: Stored) -> list[str]:
    """Return the linear layers of the decoder that are stored without quantization."""
    stored = chain.from_iterable(parts.formats.get(kind, ()) for kind in _PLAIN)
    return [name for name in stored if _is_linear(name)]


def _counts(parts: Stored) -> str:
    return ", ".join(f"{len(names)} as {kind}" for kind, names in parts.formats.items()) or "nothing is stored"


def scale_findings(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield every finding about a checkpoint's scales."""
    for rule in (_scales, _awq, _weight_only, _kv_scales):
        yield from rule(checkpoint, parts)


def _scales(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield NVFP4 weights without the scale of the whole matrix."""
    names = {tensor.name for tensor in checkpoint.tensors}
    modules = parts.formats.get("NVFP4", ())
    bare = []
    for module in modules:
        if names.isdisjoint({f"{module}.weight_scale_2", f"{module}.weight_global_scale"}):
            bare.append(module)
    if bare:
        yield finding("nvfp4-scale-missing", f"{len(bare)} NVFP4 modules have no global scale, {bare[0]} the first")


def _awq(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    if checkpoint.quantization:
        algorithm = checkpoint.quantization.algorithm
    else:
        algorithm = None
    if algorithm == AWQ:
        factors = f"{parts.pre_quant_scales} modules have a pre_quant_scale"
        yield finding(
            "awq",
            f"declares {AWQ}; {factors if parts.pre_quant_scales else 'its factors are folded into the norms'}",
            error=error_text("nvfp4-awq").partition(". ")[0],
        )
    elif parts.pre_quant_scales:
        yield finding(
            "awq-not-declared",
            f"{parts.pre_quant_scales} modules have a pre_quant_scale, but {algorithm or 'nothing'} is declared",
        )


def _weight_only(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    if checkpoint.quantization:
        algorithm, method = checkpoint.quantization.algorithm, checkpoint.quantization.method
    else:
        algorithm, method = None, None
    if algorithm == WEIGHT_ONLY and method == "modelopt":
        yield finding("w4a16", f"declares {WEIGHT_ONLY}: 4-bit weights, 16-bit activations")
    elif algorithm in ("NVFP4", AWQ) and parts.count("NVFP4") and not parts.input_scales:
        yield finding(
            "no-input-scales", f"declares {algorithm}, 4-bit activations included, and stores no scale for them"
        )


def _kv_scales(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    if checkpoint.quantization:
        declared = checkpoint.quantization.kv_cache
    else:
        declared = None
    if declared and not parts.kv_scales:
        yield finding("kv-scales-missing", f"declares a KV cache in {declared}, and stores no k_scale or v_scale")
    elif parts.kv_scales and not declared:
        yield finding(
            "kv-scales-not-declared", f"stores {parts.kv_scales} KV cache scales, but declares no KV cache format"
        )
