"""Which launch parameters compute a prompt fastest in Triton's attention: rows for the patch triton-launch-params.

vLLM's own function chooses as released, and what it hands to the kernel is replaced. A launch is rows of a block, tile
of keys, warps, stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from searching import Launch, Search, gpu_ms, timer

BLOCK = 16  # tokens in a block of the cache
SHAPES = ((32, 64), (128, 64), (64, 64), (32, 32), (64, 32), (16, 64), (128, 32), (32, 128))  # rows, tile of keys
FIRST = (8, 2)  # warps and stages with which the shapes are compared
OTHERS = ((4, 2), (8, 3), (4, 3), (8, 1), (16, 2))
BOUND = {1: 0.06, 2: 0.01}  # relative difference by bytes of an element: FP8 rounds the weights of a softmax to 1/16


class Chosen:
    """vLLM's kernel, launched with other parameters than those that its function chose; with None, as chosen."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launch: Launch | None = None

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., Any]:
        def run(**options: Any) -> Any:
            if self.launch is None:
                return self.kernel[grid](**options)
            rows, tile, warps, stages = self.launch
            block = rows // options["num_queries_per_kv"]
            blocks = options["query_ptr"].shape[0] // block + options["num_seqs"]
            own = {"BLOCK_M": rows, "BLOCK_Q": block, "TILE_SIZE": tile, "num_warps": warps, "num_stages": stages}
            return self.kernel[(blocks, *grid[1:])](**(options | own))

        return run


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


def prompt_row(
    torch: Any,
    module: Any,
    layer: dict[str, int],
    job: dict[str, Any],
    *,
    major: int,
    device: str = "cuda",
    milliseconds: Any = gpu_ms,
) -> dict[str, Any]:
    """Return what was found for one kind of layer; `major` is of the GPU's capability."""
    kernel, bytes_ = Chosen(module.kernel_unified_attention), 1 if job["fp8"] else 2
    module.kernel_unified_attention = kernel
    try:
        run = prompt(torch, module, layer, job, device)
        expected = run().float().clone()

        def took(launch: Launch | None) -> float:
            kernel.launch = launch
            return float(milliseconds(torch, run))

        def apart(launch: Launch | None) -> float:
            kernel.launch = launch
            return float(((run().float() - expected).norm() / expected.norm()).item())

        search = Search(took, apart, BOUND[bytes_], timer(job["seconds"]))
        group = layer["heads"] // layer["kv_heads"]
        search.attempt((rows, tile, *FIRST) for rows, tile in SHAPES if rows >= group)
        if search.best:
            shape = search.best[:2]
            search.attempt((*shape, *others) for others in OTHERS)
        return search.row(f"prompt:{major},{layer['head']},{bytes_}")
    finally:
        module.kernel_unified_attention = kernel.kernel


def prompt_rows(torch: Any, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of attention layer."""
    if not job["layers"]:
        return
    from vllm.v1.attention.ops import triton_unified_attention as module  # type: ignore[import-not-found,unused-ignore]

    for layer in job["layers"]:
        yield prompt_row(torch, module, layer, job, major=torch.cuda.get_device_capability(0)[0])
        torch.cuda.empty_cache()
