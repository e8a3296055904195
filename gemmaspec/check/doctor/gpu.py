"""GPU, driver and CUDA according to nvidia-smi, and whether the image and this vLLM can run with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gemmaspec.check.doctor.result import CheckResult, failed, ok, warning
from gemmaspec.core.releases.backends import backend_for
from gemmaspec.core.releases.facts import Facts
from gemmaspec.run.machine.readings import Gpus

_DRIVERS: Final = "lspci | grep -i nvidia    # a GPU without a driver: https://www.nvidia.com/drivers"
_TRITON: Final = "TRITON_ATTN"
_NATIVE_FP4: Final = "flashinfer_b12x"
"""The first release with NVFP4 kernels for SM 12.x (model_executor/kernels/linear/nvfp4)."""


def gpu_row(gpus: Gpus | None, *, wanted: bool, capability: str | None) -> CheckResult:
    """Check whether there is a GPU if the profile needs one, and whether it is its machine's kind."""
    if gpus is None and wanted:
        return failed("gpu", "nvidia-smi finds no GPU, but the profile's machine has one", _DRIVERS)
    if gpus is None:
        return ok("gpu", "no GPU, and none is needed")
    capabilities = ", ".join(dict.fromkeys(gpus.capabilities)) or "unknown"
    shown = f"{', '.join(_kinds(gpus.names))}, compute capability {capabilities}"
    if wanted and capability and gpus.capabilities and capability not in gpus.capabilities:
        return warning("gpu", f"{shown}; the profile is for {capability}")
    return ok("gpu", shown)


def _kinds(names: Sequence[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        yield f"{count} x {name}" if count > 1 else name


def lacks(capability: str | None, facts: Facts) -> Iterator[str]:
    """Yield what this vLLM lacks on a GPU, according to its sources."""
    if capability is None:
        return
    major = int(capability.partition(".")[0])
    text = backend_for(facts.vllm, capability, masks=False, fp8=False)
    images = backend_for(facts.vllm, capability, masks=True, fp8=False)
    if text == images == _TRITON:
        yield "no FlashAttention or FlashInfer for Gemma 4: Triton attention"
    elif images == _TRITON:
        yield f"{text} for text, Triton attention where images are served"
    if major < 10:
        yield "no FP4 units: NVFP4 weights run through Marlin in 16 bits"
    if major == 12 and not _has_native_fp4(facts):
        yield "no NVFP4 kernels made for 12.x, which come with vLLM 0.24.0: Marlin or CUTLASS"


def capability_row(capability: str | None, facts: Facts | None) -> CheckResult | None:
    """Return a note on what the GPU lacks, if anything is known."""
    if facts is None or capability is None:
        return None
    limits = list(lacks(capability, facts))
    subject = f"vllm {facts.vllm} on {capability}: "
    return ok("kernels", subject + ("; ".join(limits) or "no known limitations"))


def _has_native_fp4(facts: Facts) -> bool:
    flag = facts.flags.get("--linear-backend")
    choices: Sequence[str] | frozenset[str] = flag.choices or () if flag else ()
    return _NATIVE_FP4 in choices
