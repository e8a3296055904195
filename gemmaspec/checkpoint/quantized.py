"""How a checkpoint declares that it is quantized, held against how its tensors are stored.

Effects are those of vLLM's loaders (vllm/model_executor/layers/quantization/modelopt.py, kv_cache.py; 0.19.0 to
0.33.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from gemmaspec.checkpoint.finding import Finding
from gemmaspec.checkpoint.model import Checkpoint
from gemmaspec.checkpoint.quantization import AWQ, MIXED, WEIGHT_ONLY
from gemmaspec.checkpoint.stored import Stored, part_of, stored

_PACKED: Final = ("NVFP4", "MXFP4", "MXFP8", "FP8", "INT4", "INT8")
_FAMILY: Final = {"NVFP4": "NVFP4", AWQ: "NVFP4", WEIGHT_ONLY: "NVFP4", "W4A16": "INT4", "W8A8": "INT8"}
"""Declared algorithm → the format that its modules are stored in, where that is not the algorithm's own beginning."""
_LINEAR: Final = re.compile(r"\.(?:[qkvo]|gate|up|down)_proj$")


def quantization_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Every finding about a checkpoint's quantization."""
    found = stored(checkpoint.tensors)
    for rule in (_types, _declared, _packed, _scales, _unquantized, _awq, _weight_only, _kv_scales):
        yield from rule(checkpoint, found)


def stored_as(algorithm: str) -> str:
    """The format that an algorithm's modules are stored in."""
    return _FAMILY.get(algorithm, next((one for one in _PACKED if algorithm.startswith(one)), algorithm))


def is_excluded(module: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern keeps a module unquantized: exact, a wildcard, a part of the name, or `re:` and an expression.

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
    """A stranger's expression is taken only where it is a plain one: others could run for ever."""
    if not re.fullmatch(r"[\w.*\\|^$-]{1,200}", expression) or expression.count("*") > 3:
        return False
    return re.match(expression, module) is not None


def _types(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    if found.count("NVFP4"):
        types = ", ".join(sorted({tensor.dtype for tensor in checkpoint.tensors}))
        yield Finding(
            code="nvfp4-types",
            severity="note",
            says=f"stored types {types} are how NVFP4 looks in a file: U8 holds two 4-bit weights, F8_E4M3 the scale "
            "of 16 of them, BF16 what is not quantized",
            causes="A page that lists these types does not say that this is a BF16 or FP8 model.",
        )


def _declared(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    """Declared, and nothing of it stored."""
    quantization = checkpoint.quantization
    if quantization is None or not checkpoint.tensors or not quantization.algorithm:
        return
    if quantization.algorithm == MIXED:
        if quantization.method == "modelopt" and not quantization.by_layer:
            yield Finding(
                code="mixed-without-layers",
                severity="error",
                says=f"{quantization.declared_in} declares {MIXED} and lists no quantized_layers",
                causes="vLLM refuses it: MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' mapping",
            )
        return
    kind = stored_as(quantization.algorithm)
    if kind in _PACKED and not found.count(kind):
        yield Finding(
            code="declared-not-stored",
            severity="error",
            says=f"{quantization.declared_in} declares {quantization.algorithm}, and no module is stored as {kind} "
            f"({_counts(found)})",
            causes="vLLM makes packed parameters that nothing fills; from 0.30.0 on it says: NVFP4 weight_scale for "
            "layer … was never loaded (still NaN)."
            if kind == "NVFP4"
            else "vLLM makes parameters whose scales nothing fills.",
            mend="take the weights and the configuration from the same export",
        )


def _packed(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    """Stored, and not declared."""
    kinds = [kind for kind in _PACKED if found.count(kind)]
    if checkpoint.quantization is None and kinds:
        yield Finding(
            code="stored-not-declared",
            severity="error",
            says=f"{found.count(*kinds)} modules are stored as {', '.join(kinds)}, and neither config.json nor "
            "hf_quant_config.json declares a quantization",
            causes="vLLM makes BF16 layers for them: packed weights do not fit their shapes, and FP8 values without "
            "their scales are other weights.",
            mend="the export's hf_quant_config.json, or quantization_config in config.json, was left behind: get it",
        )


def _scales(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    """Packed weights come with a scale each."""
    names = {tensor.name for tensor in checkpoint.tensors}
    modules = found.formats.get("NVFP4", ())
    bare = [one for one in modules if not {f"{one}.weight_scale_2", f"{one}.weight_global_scale"} & names]
    if bare:
        yield Finding(
            code="nvfp4-scale-missing",
            severity="error",
            says=f"{len(bare)} NVFP4 modules have no global scale, {bare[0]} the first",
            causes="vLLM would multiply with whatever is in memory.",
        )


def _unquantized(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    """Linear layers of the decoder that are BF16 and that no pattern excludes."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.algorithm == MIXED or not found.count(*_PACKED):
        return
    plain = [
        module
        for kind in ("BF16", "F16", "F32")
        for module in found.formats.get(kind, ())
        if part_of(module) == "decoder layers" and _LINEAR.search(module)
    ]
    wrong = [one for one in plain if not is_excluded(one, quantization.excluded) and not _unread(checkpoint, one)]
    if wrong:
        yield Finding(
            code="unquantized-not-excluded",
            severity="warning",
            says=f"{len(wrong)} linear layers of the decoder are not quantized, and no pattern excludes them: "
            f"{', '.join(wrong[:2])}{' …' if len(wrong) > 2 else ''}",
            causes="vLLM expects them packed; from 0.30.0 on: NVFP4 weight_scale for layer … was never loaded.",
            mend="add them to the excluded modules of the checkpoint's configuration",
        )


def _unread(checkpoint: Checkpoint, module: str) -> bool:
    """Keys and values of a layer that shares another's cache: stored by some, used by nobody."""
    match = re.search(r"\.layers\.(\d{1,4})\.self_attn\.[kv]_proj$", module)
    layers = checkpoint.text.layers
    return match is not None and int(match[1]) < len(layers) and layers[int(match[1])].shares_with is not None


def _awq(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    algorithm = checkpoint.quantization.algorithm if checkpoint.quantization else None
    if algorithm == AWQ:
        factors = f"{found.pre_quant_scales} modules have a pre_quant_scale"
        yield Finding(
            code="awq",
            severity="patch",
            says=f"declares {AWQ}; {factors if found.pre_quant_scales else 'its factors are folded into the norms'}",
            causes="vLLM up to 0.33.0 refuses the name: ModelOpt currently only supports: […] quantizations in vLLM",
            patches=("nvfp4-awq",),
        )
    elif found.pre_quant_scales:
        yield Finding(
            code="awq-not-declared",
            severity="error",
            says=f"{found.pre_quant_scales} modules have a pre_quant_scale, and {algorithm or 'nothing'} is declared",
            causes="pre_quant_scale belongs to NVFP4_AWQ; vLLM has no parameter for it, and without it the weights "
            "are other weights.",
            mend=f"declare quant_algo: {AWQ}, and require the patch",
            patches=("nvfp4-awq",),
        )


def _weight_only(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    algorithm = checkpoint.quantization.algorithm if checkpoint.quantization else None
    method = checkpoint.quantization.method if checkpoint.quantization else None
    if algorithm == WEIGHT_ONLY and method == "modelopt":
        yield Finding(
            code="w4a16",
            severity="warning",
            says=f"declares {WEIGHT_ONLY}: 4-bit weights, 16-bit activations",
            causes="vLLM knows the name from 0.21.0 on; older ones refuse: ModelOpt currently only supports: […]",
        )
    elif algorithm in ("NVFP4", AWQ) and found.count("NVFP4") and not found.input_scales:
        yield Finding(
            code="no-input-scales",
            severity="warning",
            says=f"declares {algorithm}, 4-bit activations included, and stores no scale for them",
            causes="Kernels that leave activations in 16 bits (Marlin) do not need one; every other quantizes the "
            "activations with a scale that was never loaded.",
            mend="serve.linear_backend: marlin (0.22 and later), VLLM_NVFP4_GEMM_BACKEND=marlin (up to 0.23)",
        )


def _kv_scales(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    declared = checkpoint.quantization.kv_cache if checkpoint.quantization else None
    if declared and not found.kv_scales:
        yield Finding(
            code="kv-scales-missing",
            severity="note",
            says=f"declares a KV cache in {declared}, and stores no k_scale or v_scale",
            causes="vLLM takes 1.0 and says: Using KV cache scaling factor 1.0 for fp8_e4m3.",
        )
    elif found.kv_scales and not declared:
        yield Finding(
            code="kv-scales-not-declared",
            severity="note",
            says=f"stores {found.kv_scales} KV cache scales, and declares no KV cache format",
            causes="They are used only with serve.kv_cache_dtype: fp8.",
        )


def _counts(found: Stored) -> str:
    """The formats that are stored, with the number of their modules."""
    return ", ".join(f"{len(names)} as {kind}" for kind, names in found.formats.items()) or "nothing is stored"
