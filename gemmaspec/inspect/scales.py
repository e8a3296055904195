"""The scales of a quantized checkpoint: of weights, activations, input channels (AWQ) and the KV cache.

Effects are those of vLLM's loaders (vllm/model_executor/layers/quantization/modelopt.py, kv_cache.py; 0.19.0 to
0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.checkpoint.parts import Checkpoint
from gemmaspec.checkpoint.quantization import AWQ, WEIGHT_ONLY
from gemmaspec.checkpoint.stored import Stored
from gemmaspec.finding import Finding
from gemmaspec.patching.bugs import error_text


def scale_findings(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    """Yield every finding about a checkpoint's scales."""
    for rule in (_scales, _awq, _weight_only, _kv_scales):
        yield from rule(checkpoint, found)


def _scales(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    """Yield packed weights without a scale."""
    names = {tensor.name for tensor in checkpoint.tensors}
    modules = found.formats.get("NVFP4", ())
    bare = [one for one in modules if not {f"{one}.weight_scale_2", f"{one}.weight_global_scale"} & names]
    if bare:
        yield Finding(
            code="nvfp4-scale-missing",
            severity="error",
            message=f"{len(bare)} NVFP4 modules have no global scale, {bare[0]} the first",
            impact="vLLM would multiply with uninitialized memory.",
        )


def _awq(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    algorithm = checkpoint.quantization.algorithm if checkpoint.quantization else None
    if algorithm == AWQ:
        factors = f"{found.pre_quant_scales} modules have a pre_quant_scale"
        yield Finding(
            code="awq",
            severity="patch",
            message=f"declares {AWQ}; {factors if found.pre_quant_scales else 'its factors are folded into the norms'}",
            impact=f"vLLM up to 0.33.0 refuses the name: {error_text('nvfp4-awq').partition('. ')[0]}",
            patches=("nvfp4-awq",),
        )
    elif found.pre_quant_scales:
        yield Finding(
            code="awq-not-declared",
            severity="error",
            message=f"{found.pre_quant_scales} modules have a pre_quant_scale, but {algorithm or 'nothing'} is "
            "declared",
            impact="pre_quant_scale belongs to NVFP4_AWQ; vLLM has no parameter for it, and without it the weights "
            "are wrong.",
            fix=f"declare quant_algo: {AWQ}, and require the patch",
            patches=("nvfp4-awq",),
        )


def _weight_only(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    algorithm = checkpoint.quantization.algorithm if checkpoint.quantization else None
    method = checkpoint.quantization.method if checkpoint.quantization else None
    if algorithm == WEIGHT_ONLY and method == "modelopt":
        yield Finding(
            code="w4a16",
            severity="warning",
            message=f"declares {WEIGHT_ONLY}: 4-bit weights, 16-bit activations",
            impact="vLLM knows the name from 0.21.0 on; older ones refuse: ModelOpt currently only supports: […]",
        )
    elif algorithm in ("NVFP4", AWQ) and found.count("NVFP4") and not found.input_scales:
        yield Finding(
            code="no-input-scales",
            severity="warning",
            message=f"declares {algorithm}, 4-bit activations included, and stores no scale for them",
            impact="Kernels that leave activations in 16 bits (Marlin) do not need one; every other quantizes the "
            "activations with a scale that was never loaded.",
            fix="serve.linear_backend: marlin (0.22 and later), VLLM_NVFP4_GEMM_BACKEND=marlin (up to 0.23)",
        )


def _kv_scales(checkpoint: Checkpoint, found: Stored) -> Iterator[Finding]:
    declared = checkpoint.quantization.kv_cache if checkpoint.quantization else None
    if declared and not found.kv_scales:
        yield Finding(
            code="kv-scales-missing",
            severity="note",
            message=f"declares a KV cache in {declared}, and stores no k_scale or v_scale",
            impact="vLLM uses 1.0 and logs: Using KV cache scaling factor 1.0 for fp8_e4m3.",
        )
    elif found.kv_scales and not declared:
        yield Finding(
            code="kv-scales-not-declared",
            severity="note",
            message=f"stores {found.kv_scales} KV cache scales, but declares no KV cache format",
            impact="They are used only with serve.kv_cache_dtype: fp8.",
        )
