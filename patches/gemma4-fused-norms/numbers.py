"""norm + add (+ scale) + norm as vLLM's layers compute it, and by the patch's kernel in Triton's interpreter.

Both round to the same type at the same places, but add the squares in another order. A mean of N squares in float32 is
then off by at most N * 2**-24 of itself, and a value by half of that: below half a unit of float16, which stands for
bfloat16. A value near the middle between two may therefore round to the other, at three places one after the other:
each moves it by 2**-11 of itself, and what the sum moves is in the second norm too.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import interpreted
import torch

EPS = 1e-6
SIZES = (64, 1024, 3840, 5376)
BUILD = (
    "import triton, triton.language as tl",
    """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
options = json.loads(sys.argv[1])
fixed = {name: options.pop(name) for name in ("N", "BLOCK", "SCALED")}
kernel = _norm_add_norm_kernel
kinds = {name: "*bf16" for name in kernel.arg_names if name.endswith("_ptr")}
kinds |= {"x_stride": "i32", "residual_stride": "i32", "eps": "fp32"} | dict.fromkeys(fixed, "constexpr")
source = ASTSource(fn=kernel, signature={name: kinds[name] for name in kernel.arg_names}, constexprs=fixed)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
""",
)
"""What prints the kernel as it is built for a Hopper; its source goes between both."""
BOUND = {torch.float32: 5376 * 2**-24, torch.float16: 4 * 2**-11}
ON_A_GPU = {torch.bfloat16: 4 * 2**-8}
"""The same for bfloat16, which has 8 bits where float16 has 11."""


def numbers():
    interpreted.attention()
    from vllm.model_executor.models import gemma4

    fused = getattr(gemma4, "_norm_add_norm_launch", released)
    if fused is not released:
        check_rounded(gemma4)
    for dtype, bound in BOUND.items():
        for size in SIZES:
            for name, scale in (("", None), (", scaled", torch.tensor([0.37], dtype=dtype))):
                given = (*rows(size, dtype), scale, EPS)
                normed, total = fused(*given)
                check_same(dtype, (normed, total), released(*given))
                kind = f"{size} columns, {str(dtype).removeprefix('torch.')}{name}"
                yield f"{kind}, sum", total.float(), bound
                yield f"{kind}, norm", normed.float(), bound


def check_same(dtype, found, right):
    """Almost every value is the same bits: a rounding that is left out changes a tenth of them and more."""
    for one, other in zip(found, right, strict=True):
        same = (one == other).float().mean().item()
        assert dtype == torch.float32 or same > 0.99, f"{same:.4f} of the values are the same bits"


def check_rounded(gemma4):
    """What is built for a Hopper has no product and sum that are rounded once, which the interpreter cannot show."""
    kernel, given = gemma4._norm_add_norm_kernel, {}

    class Launched:
        def __getitem__(self, grid):
            return lambda *args, **options: given.update(options)

    gemma4._norm_add_norm_kernel = Launched()
    try:
        gemma4._norm_add_norm_launch(*rows(1024, torch.bfloat16), None, EPS)
    finally:
        gemma4._norm_add_norm_kernel = kernel
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "build.py")
        script.write_text(f"{BUILD[0]}\n{inspect.getsource(kernel.fn)}\n{BUILD[1]}")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": folder}
        env.pop("TRITON_INTERPRET", None)
        asked = [sys.executable, str(script), json.dumps(given)]
        ptx = subprocess.run(asked, env=env, check=True, capture_output=True, text=True).stdout
    assert "mul.rn.bf16" in ptx, "the products are not to be seen"
    assert "fma.rn.bf16" not in ptx, "a product and a sum are rounded once"


def rows(size, dtype):
    """Return rows, which lie apart, the sum so far and the weights of two norms; with outliers and zeros."""
    torch.manual_seed(size)
    x = torch.randn(7, size + 32)[:, :size] * torch.tensor([1, 1, 30, 0.001, 0, 5, 1])[:, None]
    residual = torch.randn(7, size) * torch.tensor([1, 20, 1, 1, 0, 0, 100])[:, None]
    residual[6, 3] = 900.0
    first, second = torch.randn(size), 1 + 3 * torch.rand(size)
    apart = torch.zeros(7, size + 32, dtype=dtype)
    apart[:, :size] = x
    return apart[:, :size], residual.to(dtype), first.to(dtype), second.to(dtype)


def released(x, residual, first, second, scale, eps):
    """Return what a layer as released computes, by vLLM's own definition of a norm."""
    from vllm import ir

    norm = ir.ops.rms_norm.impls["native"].impl_fn
    total = norm(x, first, eps) + residual
    if scale is not None:
        total = total * scale
    return norm(total, second, eps), total
