"""Scales of packed weights: whether each matrix has them, for groups of the declared size that divide its width.

As vLLM makes the parameters (layers/quantization/auto_awq.py, auto_gptq.py, fp8.py, utils/fp8_utils.py and
compressed_tensors/schemes/compressed_tensors_wNa16.py, 0.32.0)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.inspect.decoder import how_many
from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint, Quantization, Tensor
from gemmaspec.core.checkpoint.stored import input_width
from gemmaspec.core.finding import Finding

Leaves = Mapping[str, Tensor]
"""Last word of a tensor's name → tensor, of one module."""
_FP8: Final = ("F8_E4M3", "F8_E5M2")
_AWQ: Final = ("awq", "auto_awq", "awq_marlin")
_GPTQ: Final = ("gptq", "auto_gptq", "gptq_marlin")
_WITH_SCALES: Final = ("fp8", "fbgemm_fp8", "modelopt", "compressed-tensors", *_AWQ, *_GPTQ)
"""Methods whose packed matrices have their scales under the names that are looked for here."""


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """One packed matrix."""

    module: str
    inputs: int
    rows: int
    scale: Tensor | None
    groups: int | None
    """How many groups of inputs its scale has; None without a scale, or with one for blocks."""


def group_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield packed matrices without scales, with scales for other groups, and groups that vLLM cannot divide into."""
    quantization = checkpoint.quantization
    if quantization is None or quantization.method not in _WITH_SCALES:
        return
    packed = list(_packed(checkpoint, quantization))
    yield from _bits(quantization)
    yield from _missing(checkpoint, packed)
    yield from _differing(quantization, packed)
    yield from _indivisible(quantization, packed)
    yield from _blocks_of_experts(checkpoint, quantization)


def _packed(checkpoint: Checkpoint, quantization: Quantization) -> Iterator[_Packed]:
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for tensor in checkpoint.tensors:
        module, _, leaf = tensor.name.rpartition(".")
        modules[module][leaf] = tensor
    for module, leaves in modules.items():
        found = _by_columns(module, leaves, quantization) or _by_rows(module, leaves, checkpoint)
        if found:
            yield found


def _by_columns(module: str, leaves: Leaves, quantization: Quantization) -> _Packed | None:
    """Return a matrix of AWQ or GPTQ, which store their inputs first: qweight, and scales of groups x outputs."""
    weight, scale = leaves.get("qweight"), leaves.get("scales")
    if weight is None or len(weight.shape) != 2 or weight.dtype != "I32":
        return None
    in_one = 32 // (quantization.bits or 4)
    first, second = weight.shape
    inputs, rows = (first, second * in_one)
    if quantization.method not in _AWQ:
        inputs, rows = first * 32 // (quantization.bits or 4), second
    if scale and len(scale.shape) == 2:
        groups = scale.shape[0]
    else:
        groups = None
    return _Packed(module=module, inputs=inputs, rows=rows, scale=scale, groups=groups)


def _by_rows(module: str, leaves: Leaves, checkpoint: Checkpoint) -> _Packed | None:
    """Return a matrix that is stored row by row: FP8, NVFP4, and the integers of compressed-tensors."""
    weight = leaves.get("weight_packed") or leaves.get("weight")
    if weight is None or len(weight.shape) != 2:
        return None
    scale = leaves.get("weight_scale") or leaves.get("weight_scale_inv")
    rows, columns = weight.shape
    if weight.dtype in _FP8 or weight.dtype == "I8":
        return _Packed(module=module, inputs=columns, rows=rows, scale=scale, groups=None)
    if weight.dtype == "U8":
        inputs = 2 * columns
    elif weight.dtype == "I32" and "weight_packed" in leaves:
        inputs = input_width(checkpoint.text, weight.name) or _of_bits(columns, checkpoint.quantization)
    else:
        return None
    if scale and len(scale.shape) == 2:
        groups = scale.shape[-1]
    else:
        groups = None
    return _Packed(module=module, inputs=inputs, rows=rows, scale=scale, groups=groups)


def _of_bits(columns: int, quantization: Quantization | None) -> int:
    algorithm = quantization.algorithm if quantization else None
    return columns * (4 if algorithm and algorithm.startswith("W8") else 8)


def _bits(quantization: Quantization) -> Iterator[Finding]:
    """Yield bits that the classes of AWQ and GPTQ refuse, which is before any weight is read."""
    method, bits, symmetric = quantization.method, quantization.bits, quantization.symmetric
    if method in _AWQ and bits not in (None, 4):
        yield finding(
            "bits-unknown",
            f"{quantization.declared_in} declares {method} with {bits} bits",
            since="vLLM 0.32.0",
            error=f"Unsupported num_bits = {bits}.",
        )
    elif method in _GPTQ and (bits not in (None, 4, 8) or not symmetric):
        uneven = "" if symmetric else ", not symmetric"
        yield finding(
            "bits-unknown",
            f"{quantization.declared_in} declares {method} with {bits or 'unnamed'} bits{uneven}",
            since="From 0.22.1 on vLLM",
            error=f"Unsupported quantization config: bits={bits}, sym={symmetric}",
        )


def _missing(checkpoint: Checkpoint, packed: list[_Packed]) -> Iterator[Finding]:
    """Yield packed matrices without scales."""
    bare = [matrix.module for matrix in packed if matrix.scale is None]
    if bare:
        message = f"the weights of {how_many(len(bare), 'module')} packed, and have no scale: {bare[0]}"
        yield finding("scale-missing", message, ref=checkpoint.ref)


def _differing(quantization: Quantization, packed: list[_Packed]) -> Iterator[Finding]:
    """Yield the first matrix whose scales are for other groups or blocks than declared."""
    for matrix in packed:
        stored = _other_block(quantization, matrix) or _other_group(quantization, matrix)
        if stored:
            yield finding("group-size", f"{stored[0]}, and {matrix.module} has a scale for every {stored[1]} weights")
            return


def _other_group(quantization: Quantization, matrix: _Packed) -> tuple[str, str] | None:
    declared, groups = quantization.group_size, matrix.groups
    if not declared or not groups or quantization.several_group_sizes:
        return None
    if groups == -(-matrix.inputs // declared):
        return None
    return f"declares groups of {declared}", f"{matrix.inputs // groups}"


def _other_block(quantization: Quantization, matrix: _Packed) -> tuple[str, str] | None:
    block, scale = quantization.block, matrix.scale
    if block is None or scale is None or matrix.groups is not None or len(scale.shape) != 2:
        return None
    wanted = (-(-matrix.rows // block[0]), -(-matrix.inputs // block[1]))
    if scale.shape == wanted or not all(scale.shape):
        return None
    stored = f"{-(-matrix.rows // scale.shape[0])} x {-(-matrix.inputs // scale.shape[1])}"
    return f"declares blocks of {block[0]} x {block[1]}", stored


def _indivisible(quantization: Quantization, packed: list[_Packed]) -> Iterator[Finding]:
    """Yield the first matrix whose inputs are no whole groups."""
    size = quantization.group_size
    if not size or quantization.several_group_sizes:
        return
    for matrix in packed:
        if matrix.groups and matrix.inputs > size and matrix.inputs % size:
            of_awq = "The input size is not aligned with the quantized weight shape."
            of_marlin = f"in_features per partition {matrix.inputs} is not divisible by group_size = {size}."
            yield finding(
                "groups-do-not-divide",
                f"{matrix.module} has {matrix.inputs} inputs, which groups of {size} do not divide",
                error=of_awq if quantization.method in _AWQ else of_marlin,
            )
            return


def _blocks_of_experts(checkpoint: Checkpoint, quantization: Quantization) -> Iterator[Finding]:
    """Yield FP8 blocks that are no part of an expert's width. vLLM joins gate and up, so that both need whole blocks.

    Joined matrices outside of experts may have a last block in part, in every release (linear.py).
    """
    inner, block = checkpoint.text.expert_inner, quantization.block
    if not block or not inner or inner % block[0] == 0:
        return
    in_fp8 = (tensor for tensor in checkpoint.tensors if tensor.dtype in _FP8)
    if not any(".experts." in tensor.name for tensor in in_fp8):
        return
    refines = quantization.method == "fp8" and all(side % 64 == 0 for side in (*block, inner))
    yield finding(
        "blocks-of-experts",
        f"experts of {inner} are stored in FP8 with blocks of {block[0]} x {block[1]}, which do not divide them",
        severity="warning" if refines else "error",
        impact=_REFINED if refines else None,
        inner=inner,
        rows=block[0],
    )


_REFINED: Final = (
    "From vLLM 0.29.0 on its blocks are cut smaller, which only the kernels in Triton take; earlier releases stop."
)
