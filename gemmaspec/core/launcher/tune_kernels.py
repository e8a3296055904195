"""Find the launch parameters with which Triton's attention computes a prompt fastest on the first GPU.

    python3 tune_kernels.py '{"layers": [{"heads": 32, "kv_heads": 4, "head": 512, "window": 0}], "fp8": true,
                              "new": 2048, "context": 8192, "seconds": 60}'

Runs in the Python of an image or a runtime, which has torch, Triton and the vLLM whose kernel it launches: vLLM's own
function chooses as released, and what it hands to the kernel is replaced. `seconds` are those of one kind of layer.
The last line on stderr is JSON, see `found`, or {"problem": why not}. Standard library of Python 3.10 and torch only.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

BLOCK = 16  # tokens in a block of the cache
SHAPES = ((32, 64), (128, 64), (64, 64), (32, 32), (64, 32), (16, 64), (128, 32), (32, 128))  # rows, tile of keys
FIRST = (8, 2)  # warps and stages with which the shapes are compared
OTHERS = ((4, 2), (8, 3), (4, 3), (8, 1), (16, 2))
BOUND = {1: 0.06, 2: 0.01}  # relative difference by bytes of an element: FP8 rounds the weights of a softmax to 1/16
LAUNCHES = 5

Launch = tuple[int, int, int, int]
"""Rows of a block, tile of keys, warps, stages."""


class Impossible(Exception):
    """It cannot be measured; the text says why."""


class Chosen:
    """vLLM's kernel, launched with other parameters than those that its function chose; with None, as chosen."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launch: Launch | None = None
        self.stock: list[Any] = []

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., Any]:
        def run(**options: Any) -> Any:
            if self.launch is None:
                names = ("BLOCK_M", "TILE_SIZE", "num_warps", "num_stages")
                self.stock = [options.get(name) for name in names]
                return self.kernel[grid](**options)
            rows, tile, warps, stages = self.launch
            block = rows // options["num_queries_per_kv"]
            blocks = options["query_ptr"].shape[0] // block + options["num_seqs"]
            own = {"BLOCK_M": rows, "BLOCK_Q": block, "TILE_SIZE": tile, "num_warps": warps, "num_stages": stages}
            return self.kernel[(blocks, *grid[1:])](**(options | own))

        return run


def gpu_ms(torch: Any, run: Callable[[], None]) -> float:
    """Return the median time of a launch in milliseconds, the first one, which compiles, left out."""
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(LAUNCHES):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    return sorted(times)[LAUNCHES // 2]


def prompt(torch: Any, module: Any, layer: dict[str, int], job: dict[str, Any], device: str) -> Callable[[], Any]:
    """Return a call that computes the last tokens of a prompt in one layer, and returns what they got."""
    heads, kv_heads, head, window = (layer[name] for name in ("heads", "kv_heads", "head", "window"))
    new, context, fp8 = job["new"], job["context"], job["fp8"]
    random = torch.Generator(device=device).manual_seed(0)
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16 if device == "cuda" else torch.float32

    def values(*shape: int) -> Any:
        return torch.randn(*shape, generator=random, device=device).to(kind)

    q = values(new, heads, head)
    blocks = -(-context // BLOCK)
    k, v = values(blocks, BLOCK, kv_heads, 2 * head).split(head, dim=-1)
    out = torch.empty(new, heads, head, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    whole = {"dtype": torch.int32, "device": device}
    scale = torch.ones(1, kv_heads, device=device) if fp8 else None
    more = {"kv_quant_mode": module.KVQuantMode.FP8_PER_TENSOR} if fp8 else {}

    def run() -> Any:
        module.unified_attention(
            q=q, k=k, v=v, out=out, cu_seqlens_q=torch.tensor([0, new], **whole), max_seqlen_q=new,
            seqused_k=torch.tensor([context], **whole), max_seqlen_k=context, softmax_scale=head**-0.5, causal=True,
            window_size=(window - 1, 0) if window else (-1, -1), softcap=0, q_descale=scale, k_descale=scale,
            v_descale=scale, block_table=torch.arange(blocks, **whole)[None], **more,
        )  # fmt: skip
        return out

    return run


class Search:
    """The fastest launch that gives the released result, tried until the time is over."""

    def __init__(self, torch: Any, kernel: Chosen, run: Callable[[], Any], milliseconds: Any) -> None:
        self.torch, self.kernel, self.run, self.milliseconds = torch, kernel, run, milliseconds
        self.released_ms = milliseconds(torch, run)
        self.expected = run().float().clone()
        self.best: Launch | None = None
        self.best_ms: float | None = None
        self.tried = self.wrong = self.failed = 0

    def attempt(self, launch: Launch, bound: float) -> None:
        """Launch with these parameters; keep them if they are right and the fastest so far."""
        self.tried, self.kernel.launch = self.tried + 1, launch
        try:
            took = self.milliseconds(self.torch, self.run)
            apart = ((self.run().float() - self.expected).norm() / self.expected.norm()).item()
        except Exception:  # Triton's errors are of its own kinds: too much shared memory, no such layout
            self.failed += 1
            return
        if not apart <= bound:  # NaN is wrong, too
            self.wrong += 1
        elif self.best_ms is None or took < self.best_ms:
            self.best, self.best_ms = launch, took


def tuned(
    torch: Any,
    module: Any,
    layer: dict[str, int],
    job: dict[str, Any],
    *,
    device: str = "cuda",
    milliseconds: Any = gpu_ms,
    clock: Any = time.monotonic,
) -> dict[str, Any]:
    """Return the time of one kind of layer as released and with the fastest parameters that give the same result."""
    kernel, bytes_, end = Chosen(module.kernel_unified_attention), 1 if job["fp8"] else 2, clock() + job["seconds"]
    module.kernel_unified_attention = kernel
    try:
        search = Search(torch, kernel, prompt(torch, module, layer, job, device), milliseconds)
        for rows, tile in SHAPES:
            if rows >= layer["heads"] // layer["kv_heads"] and clock() < end:
                search.attempt((rows, tile, *FIRST), BOUND[bytes_])
        for warps, stages in OTHERS:
            if search.best and clock() < end:
                search.attempt((*search.best[:2], warps, stages), BOUND[bytes_])
    finally:
        module.kernel_unified_attention = kernel.kernel
    names = ("released_ms", "best", "best_ms", "tried", "wrong", "failed")
    counted = {name: getattr(search, name) for name in names}
    return {"head": layer["head"], "bytes": bytes_, "released": kernel.stock, **counted}


def found(job: dict[str, Any]) -> dict[str, Any]:
    """Return the GPU, the versions and a row for each kind of layer. Raises Impossible."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    if not torch.cuda.is_available():
        raise Impossible("torch sees no GPU")
    keep = tempfile.TemporaryDirectory(prefix="gemmaspec-triton-")  # the home of a container's user may be unwritable
    os.environ["TRITON_CACHE_DIR"] = keep.name
    import triton  # type: ignore[import-not-found,unused-ignore]
    import vllm  # type: ignore[import-not-found,unused-ignore]
    from vllm.v1.attention.ops import triton_unified_attention as module  # type: ignore[import-not-found,unused-ignore]

    rows = []
    for layer in job["layers"]:
        rows.append(tuned(torch, module, layer, job))
        torch.cuda.empty_cache()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "capability": torch.cuda.get_device_capability(0)[0],
        "vllm": vllm.__version__,
        "triton": triton.__version__,
        "rows": rows,
    }


def main(arguments: Sequence[str]) -> int:
    """Print the result on stderr; return 1 if nothing could be measured."""
    try:
        result = found(json.loads(arguments[0]))
    except ImportError as error:
        result = {"problem": f"this Python lacks what is measured: {error}"}
    except (Impossible, RuntimeError, AttributeError) as error:
        result = {"problem": str(error).partition("\n")[0]}
    print(json.dumps(result), file=sys.stderr)
    return 1 if "problem" in result else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
