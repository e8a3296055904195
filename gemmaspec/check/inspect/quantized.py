"""Compare the declared quantization of a checkpoint with its stored tensors.

Effects are those of vLLM's loaders (vllm/model_executor/layers/quantization/modelopt.py, kv_cache.py; 0.19.0 to
0.33.0)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from gemmaspec.core.checkpoint.fields import AWQ, MIXED, WEIGHT_ONLY, printable
from gemmaspec.core.checkpoint.parts import Checkpoint, Stored, part_of, stored
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.bugs import error_text
from gemmaspec.core.releases.facts import knows_method, newest, spans

_PACKED: Final = ("NVFP4", "MXFP4", "MXFP8", "FP8", "INT4", "INT8")
_FAMILY: Final = {
    "NVFP4": "NVFP4",
    AWQ: "NVFP4",
    WEIGHT_ONLY: "NVFP4",
    "W4A16": "INT4",
    "W8A8": "INT8",
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
    weights = stored(checkpoint.tensors)
    for rule in (_types, _contradicted, _declared, _mixed, _packed, _unquantized):
        yield from rule(checkpoint, weights)
    yield from scale_findings(checkpoint, weights)


def stored_as(algorithm: str) -> str:
    """Return the format in which an algorithm's modules are stored."""
    return _FAMILY.get(algorithm, next((packed for packed in _PACKED if algorithm.startswith(packed)), algorithm))


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
        types = ", ".join(sorted({tensor.dtype for tensor in checkpoint.tensors}))
        yield Finding(
            code="nvfp4-types",
            severity="note",
            message=f"stored types {types} are how NVFP4 looks in a file: U8 holds two 4-bit weights, F8_E4M3 the "
            "scale of 16 of them, BF16 what is not quantized",
            impact="A page that lists these types does not mean that this is a BF16 or FP8 model.",
        )


def _method(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield a method that vLLM does not have, or has no longer."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.method == "unknown" or knows_method(quantization.method, newest()):
        return
    span = spans("quantization", quantization.method)
    yield Finding(
        code="quantization-unknown",
        severity="error",
        message=f"{quantization.declared_in} declares the quantization {printable(quantization.method, 40)}, "
        f"which vLLM {newest()} does not know{f' (known {span})' if span else ''}",
        impact=f"vLLM stops: Unknown quantization method: {printable(quantization.method, 40)}.",
        fix="use a release that knows it, or another checkpoint" if span else "use another checkpoint",
    )


def _declared(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield declared formats in which nothing is stored."""
    quantization = checkpoint.quantization
    if quantization is None or not checkpoint.tensors or quantization.algorithm in (None, MIXED):
        return
    kind = stored_as(quantization.algorithm)
    linear = [name for kinds in parts.formats.values() for name in kinds if _is_linear(name)]
    plain = [name for kind in _PLAIN for name in parts.formats.get(kind, ()) if _is_linear(name)]
    if quantization.method in _PACKING and linear and len(plain) == len(linear):
        yield Finding(
            code="declared-not-stored",
            severity="error",
            message=f"{quantization.declared_in} declares {quantization.method}, but every linear layer of the decoder "
            f"is stored unquantized ({_counts(parts)})",
            impact="vLLM makes packed parameters that nothing fills.",
            fix="use weights and configuration of the same export",
        )
    elif kind in _PACKED and not parts.count(kind):
        yield Finding(
            code="declared-not-stored",
            severity="error",
            message=f"{quantization.declared_in} declares {quantization.algorithm}, but no module is stored as {kind} "
            f"({_counts(parts)})",
            impact="vLLM makes packed parameters that nothing fills; from 0.30.0 on it says: NVFP4 weight_scale for "
            "layer … was never loaded (still NaN)."
            if kind == "NVFP4"
            else "vLLM makes parameters whose scales stay empty.",
            fix="use weights and configuration of the same export",
        )


def _mixed(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield findings on a MIXED_PRECISION checkpoint, whose modules each have their own algorithm."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.algorithm != MIXED or quantization.method != "modelopt":
        return
    if not quantization.by_layer:
        yield Finding(
            code="mixed-without-layers",
            severity="error",
            message=f"{quantization.declared_in} declares {MIXED} and lists no quantized_layers",
            impact="vLLM refuses it: MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' mapping",
        )
    if AWQ in quantization.by_layer.values():
        yield Finding(
            code="mixed-awq",
            severity="error",
            message=f"some modules of a {MIXED} checkpoint are {AWQ}",
            impact="vLLM treats them as unquantized, so their shapes do not match; no patch fixes this.",
        )
    is_stored = {module: kind for kind, modules in parts.formats.items() for module in modules}
    wrong = [
        (module, algorithm, is_stored[module])
        for module, algorithm in quantization.by_layer.items()
        if module in is_stored and is_stored[module] != stored_as(algorithm)
    ]
    if wrong:
        module, algorithm, kind = wrong[0]
        yield Finding(
            code="mixed-differs",
            severity="error",
            message=f"{len(wrong)} modules are not stored as declared; {module} is declared {algorithm} and "
            f"stored as {kind}",
            impact="vLLM makes parameters of different shapes for them.",
        )


def _contradicted(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    quantization = checkpoint.quantization
    if quantization and quantization.contradicted_by:
        yield Finding(
            code="declarations-differ",
            severity="warning",
            message=f"config.json declares {quantization.algorithm}, hf_quant_config.json "
            f"{quantization.contradicted_by} ({_counts(parts)})",
            impact="vLLM uses config.json.",
        )


def _packed(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield stored formats that are not declared."""
    kinds = [kind for kind in _PACKED if parts.count(kind)]
    if checkpoint.quantization is None and kinds:
        yield Finding(
            code="stored-not-declared",
            severity="error",
            message=f"{parts.count(*kinds)} modules are stored as {', '.join(kinds)}, but neither config.json nor "
            "hf_quant_config.json declares a quantization",
            impact="vLLM makes BF16 layers for them: packed weights do not fit their shapes, and FP8 values without "
            "their scales are wrong.",
            fix="the export's hf_quant_config.json, or quantization_config in config.json, was left behind: get it",
        )


def _unquantized(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield linear layers of the decoder that are BF16 without an excluding pattern."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.algorithm == MIXED or not parts.count(*_PACKED):
        return
    plain = [module for kind in _PLAIN for module in parts.formats.get(kind, ()) if _is_linear(module)]
    wrong = [name for name in plain if not is_excluded(name, quantization.excluded) and not _unread(checkpoint, name)]
    if wrong:
        yield Finding(
            code="unquantized-not-excluded",
            severity="warning",
            message=f"{len(wrong)} linear layers of the decoder are not quantized, and no pattern excludes them: "
            f"{', '.join(wrong[:2])}{' …' if len(wrong) > 2 else ''}",
            impact="vLLM expects them packed; from 0.30.0 on: NVFP4 weight_scale for layer … was never loaded.",
            fix="add them to the excluded modules of the checkpoint's configuration",
        )


def _is_linear(module: str) -> bool:
    return part_of(module) == "decoder layers" and _LINEAR.search(module) is not None


def _unread(checkpoint: Checkpoint, module: str) -> bool:
    """Return whether a module belongs to the unused keys and values of a layer that shares another's cache."""
    match = re.search(r"\.layers\.(\d{1,4})\.self_attn\.[kv]_proj$", module)
    layers = checkpoint.text.layers
    return match is not None and int(match[1]) < len(layers) and layers[int(match[1])].shares_with is not None


def _counts(parts: Stored) -> str:
    """Return the stored formats with the number of their modules."""
    return ", ".join(f"{len(names)} as {kind}" for kind, names in parts.formats.items()) or "nothing is stored"


def scale_findings(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield every finding about a checkpoint's scales."""
    for rule in (_scales, _awq, _weight_only, _kv_scales):
        yield from rule(checkpoint, parts)


def _scales(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    """Yield packed weights without a scale."""
    names = {tensor.name for tensor in checkpoint.tensors}
    modules = parts.formats.get("NVFP4", ())
    bare = [module for module in modules if not {f"{module}.weight_scale_2", f"{module}.weight_global_scale"} & names]
    if bare:
        yield Finding(
            code="nvfp4-scale-missing",
            severity="error",
            message=f"{len(bare)} NVFP4 modules have no global scale, {bare[0]} the first",
            impact="vLLM would multiply with uninitialized memory.",
        )
    by_name = {tensor.name: tensor for tensor in checkpoint.tensors}
    declared = checkpoint.quantization.group_size if checkpoint.quantization else None
    for module in modules if declared else ():
        packed, scale = by_name.get(f"{module}.weight"), by_name.get(f"{module}.weight_scale")
        packed = packed or by_name.get(f"{module}.weight_packed")
        if packed and scale and packed.shape and scale.shape and scale.shape[-1]:
            stored_group = 2 * packed.shape[-1] // scale.shape[-1]
            if stored_group != declared:
                yield Finding(
                    code="group-size",
                    severity="error",
                    message=f"declares groups of {declared}, and {module} has a scale for every {stored_group} weights",
                    impact="vLLM makes scales of the declared groups, and the stored ones do not fit.",
                    fix="take config.json and weights from the same export",
                )
                return


def _awq(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    algorithm = checkpoint.quantization.algorithm if checkpoint.quantization else None
    if algorithm == AWQ:
        factors = f"{parts.pre_quant_scales} modules have a pre_quant_scale"
        yield Finding(
            code="awq",
            severity="patch",
            message=f"declares {AWQ}; {factors if parts.pre_quant_scales else 'its factors are folded into the norms'}",
            impact=f"vLLM up to 0.33.0 refuses the name: {error_text('nvfp4-awq').partition('. ')[0]}",
            patches=("nvfp4-awq",),
        )
    elif parts.pre_quant_scales:
        yield Finding(
            code="awq-not-declared",
            severity="error",
            message=f"{parts.pre_quant_scales} modules have a pre_quant_scale, but {algorithm or 'nothing'} is "
            "declared",
            impact="pre_quant_scale belongs to NVFP4_AWQ; vLLM has no parameter for it, and without it the weights "
            "are wrong.",
            fix=f"declare quant_algo: {AWQ}, and require the patch",
            patches=("nvfp4-awq",),
        )


def _weight_only(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    algorithm = checkpoint.quantization.algorithm if checkpoint.quantization else None
    method = checkpoint.quantization.method if checkpoint.quantization else None
    if algorithm == WEIGHT_ONLY and method == "modelopt":
        yield Finding(
            code="w4a16",
            severity="warning",
            message=f"declares {WEIGHT_ONLY}: 4-bit weights, 16-bit activations",
            impact="vLLM knows the name from 0.21.0 on; older ones refuse: ModelOpt currently only supports: […]",
        )
    elif algorithm in ("NVFP4", AWQ) and parts.count("NVFP4") and not parts.input_scales:
        yield Finding(
            code="no-input-scales",
            severity="warning",
            message=f"declares {algorithm}, 4-bit activations included, and stores no scale for them",
            impact="Kernels that leave activations in 16 bits (Marlin) do not need one; every other quantizes the "
            "activations with a scale that was never loaded.",
            fix="serve.linear_backend: marlin (0.22 and later), VLLM_NVFP4_GEMM_BACKEND=marlin (up to 0.23)",
        )


def _kv_scales(checkpoint: Checkpoint, parts: Stored) -> Iterator[Finding]:
    declared = checkpoint.quantization.kv_cache if checkpoint.quantization else None
    if declared and not parts.kv_scales:
        yield Finding(
            code="kv-scales-missing",
            severity="note",
            message=f"declares a KV cache in {declared}, and stores no k_scale or v_scale",
            impact="vLLM uses 1.0 and logs: Using KV cache scaling factor 1.0 for fp8_e4m3.",
        )
    elif parts.kv_scales and not declared:
        yield Finding(
            code="kv-scales-not-declared",
            severity="note",
            message=f"stores {parts.kv_scales} KV cache scales, but declares no KV cache format",
            impact="They are used only with serve.kv_cache_dtype: fp8.",
        )
