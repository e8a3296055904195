"""Compiles vLLM's Triton attention as it would be launched on GPUs that are not there; a script of its own.

Run with the interpreter of probes, and with a tree that has vllm/ and a folder with Triton first on PYTHONPATH. Reads
a JSON list of cases, writes a JSON list of the kernels of each. Triton is given a FAKE driver that only names the
target, tensors have no memory (torch's meta device), and NVIDIA's own assembler, which is in Triton's wheel, counts
registers and spilled bytes.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

BLOCK, SEGMENTS, ROWS, CACHED = 16, 16, 2048, 8192
_SPILLED = re.compile(r"(\d+) bytes spill stores")
_REGISTERS = re.compile(r"Used (\d+) registers")
_now = SimpleNamespace(capability=90)


class Driver:
    """A FAKE of Triton's driver: it names the GPU to compile for and launches nothing."""

    utils = None

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", _now.capability, 32)

    def get_current_device(self):
        return _now.capability  # Triton keeps what it compiled by device

    def get_current_stream(self, _device=None):
        return 0

    def map_python_to_cpp_type(self, kind):
        from triton.backends.nvidia.driver import ty_to_cpp

        return ty_to_cpp(kind)


def attention():
    """Return the tree's module of Triton attention, with vLLM's own imports but without a GPU."""
    import triton

    real = importlib.metadata.version
    importlib.metadata.version = lambda name: "0" if name == "vllm" else real(name)
    sys.modules.setdefault("vllm.env_override", ModuleType("vllm.env_override"))
    triton.runtime.driver.set_active(Driver())
    from vllm.v1.attention.ops import triton_unified_attention

    return triton_unified_attention


def platform(capability: int):
    """Return a FAKE of vLLM's platform: a GPU of one capability."""
    import torch

    major, minor = divmod(capability, 10)
    return SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_cuda=lambda: True,
        is_cuda_alike=lambda: True,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        get_device_capability=lambda: SimpleNamespace(major=major, minor=minor),
        is_device_capability=lambda asked: asked in ((major, minor), capability),
        is_device_capability_family=lambda asked: asked // 10 == major,
        has_device_capability=lambda asked: (
            (asked if isinstance(asked, int) else asked[0] * 10 + asked[1]) <= capability
        ),
        num_compute_units=lambda: 48,
    )


class Compiled:
    """A kernel that is compiled where vLLM launches it."""

    def __init__(self, kernel, name, into) -> None:
        self.kernel, self.name, self.into = kernel, name, into

    def __getitem__(self, grid):
        def compile_it(*positional, **named):
            made = self.kernel.warmup(*positional, grid=grid, **named)
            split = bool(named.get("IS_3D"))
            self.into.append({"kernel": self.name, "split": split, "shared": made.metadata.shared, **assembled(made)})

        return compile_it


def assembled(made) -> dict[str, int]:
    """Return registers and bytes that the assembler spills for this target."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    own = "a" if _now.capability >= 90 else ""
    exe = tools / ("ptxas-blackwell" if _now.capability >= 100 else "ptxas")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(made.asm["ptx"])
        file.flush()
        command = [str(exe), "-v", f"--gpu-name=sm_{_now.capability}{own}", file.name, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {"spilled": int(_SPILLED.search(said)[1]), "registers": int(_REGISTERS.search(said)[1])}


def built(module, kernels, case) -> list[dict]:
    """Return what vLLM launches for one layer: `new` tokens of one request, after CACHED others."""
    import torch

    _now.capability = case["capability"]
    heads, kv_heads = case["heads"]
    new, head, window, fp8 = case["new"], case["head"], case["window"], case["fp8"]
    element = torch.float8_e4m3fn if fp8 else torch.bfloat16
    into: list[dict] = []
    for name, kernel in kernels.items():
        setattr(module, name, Compiled(kernel, name, into))
    module.current_platform = platform(case["capability"])

    def empty(*shape, dtype=torch.float32):
        return torch.empty(*shape, dtype=dtype, device="meta")

    keys, values = empty(1024, BLOCK, kv_heads, 2 * head, dtype=element).split(head, dim=-1)
    scale = empty(1, kv_heads) if fp8 else None
    rows = (max(ROWS, new), heads, SEGMENTS)
    module.unified_attention(
        q=empty(new, heads, head, dtype=element), k=keys, v=values, out=empty(new, heads, head, dtype=torch.bfloat16),
        cu_seqlens_q=empty(2, dtype=torch.int32), max_seqlen_q=new, seqused_k=empty(1, dtype=torch.int32),
        max_seqlen_k=CACHED, softmax_scale=1.0, causal=True, window_size=(window - 1, 0) if window else (-1, -1),
        block_table=empty(1, 8192, dtype=torch.int32), softcap=0, q_descale=scale, k_descale=scale, v_descale=scale,
        seq_threshold_3D=128, num_par_softmax_segments=SEGMENTS, softmax_segm_output=empty(*rows, head),
        softmax_segm_max=empty(*rows), softmax_segm_expsum=empty(*rows),
        **({"kv_quant_mode": module.KVQuantMode.FP8_PER_TENSOR} if fp8 else {}),
    )  # fmt: skip
    return into


def norms(case) -> list[dict]:
    """Return the kernel of gemma4-fused-norms, taken out of the tree's model file: that imports much, and launches it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _now.capability = case["capability"]
    source = next(Path(folder) / MODEL for folder in sys.path if (Path(folder) / MODEL).is_file()).read_text()
    begin, end = source.index("@triton.jit\ndef _norm_add_norm_kernel"), source.index("def _norm_add_norm_launch")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "taken_out.py").write_text("import triton\nimport triton.language as tl\n\n" + source[begin:end])
        sys.path.insert(0, folder)
        kernel = importlib.import_module("taken_out")._norm_add_norm_kernel
        sys.path.remove(folder)
        sys.modules.pop("taken_out")
        fixed = {"N": case["width"], "BLOCK": triton.next_power_of_2(case["width"]), "SCALED": case["scaled"]}
        kinds = {name: "*bf16" for name in kernel.arg_names if name.endswith("_ptr")}
        kinds |= {"x_stride": "i32", "residual_stride": "i32", "eps": "fp32"} | dict.fromkeys(fixed, "constexpr")
        signature = {name: kinds[name] for name in kernel.arg_names}
        made = triton.compile(
            ASTSource(fn=kernel, signature=signature, constexprs=fixed),
            target=GPUTarget("cuda", _now.capability, 32),
            options={"num_warps": 8, "enable_fp_fusion": False},
        )
    ptx = made.asm["ptx"]
    products = sorted(set(re.findall(r"\b(?:mul|fma)\.rn\.bf16\b", ptx)))
    made_of = re.findall(r"\bfma\.rn\.bf16\s+%\w+, (%\w+), (%\w+), (%\w+);", ptx)
    zero, one = (set(re.findall(rf"mov\.b16\s+(%\w+), {bits};", ptx)) for bits in ("0x8000", "0x3F80"))
    fused = [factors for *factors, addend in made_of if addend not in zero and not one & set(factors)]
    return [
        {
            "kernel": "norms", "split": False, "shared": made.metadata.shared, "products": products,
            "fused": len(fused), **assembled(made),
        }
    ]  # fmt: skip


MODEL = "vllm/model_executor/models/gemma4.py"


def main() -> None:
    """Answer the cases on stdin."""
    out, sys.stdout = sys.stdout, sys.stderr
    cases = json.load(sys.stdin)
    answers = []
    module = attention() if any("new" in case for case in cases) else None
    names = ("kernel_unified_attention", "reduce_segments")
    kernels = {name: getattr(module, name) for name in names} if module else {}
    for case in cases:
        answers.append(built(module, kernels, case) if "new" in case else norms(case))
    json.dump(answers, out)


if __name__ == "__main__":
    main()
