"""Which launch parameters multiply NVFP4 matrices fastest: rows for the patch humming-launch-params.

Humming 0.1.17 (vLLM 0.32) launches as it chooses itself, and as it is told. A launch is a row of MMA or WGMMA, and
which it is.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from searching import Impossible, Launch, Search, gpu_ms, timer

COMPUTE = {"use_f16_accum": False, "use_batch_invariant": False, "gemm_type": "dense"}
NVFP4 = {
    "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "type": "float", "num_bits": 4,
    "strategy": "group", "group_size": 16,
}  # fmt: skip
VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)  # of the codes of FP4
PADDING = {"pad_n_to_multiple": 256, "pad_k_to_multiple": 128, "has_bias": False}  # vLLM's humming/linear.py, 0.32.0
MMA = (  # N and K of a block and of a warp, stages, blocks an SM: the fastest on an H100 up to MMA_ROWS rows
    (128, 128, 64, 64, 4, 2), (128, 128, 64, 32, 4, 2), (128, 128, 64, 32, 3, 2), (128, 128, 64, 32, 6, 2),
    (128, 64, 64, 32, 4, 2), (128, 64, 64, 32, 5, 2), (128, 64, 64, 32, 6, 2), (128, 128, 64, 32, 4, 1),
)  # fmt: skip
MMA_ROWS = 16
WGMMA = (  # these were the next, and with more rows the fastest
    (128, 128, 32, 64, 6, 1), (128, 128, 32, 64, 4, 2), (256, 128, 32, 64, 4, 1), (128, 256, 32, 64, 4, 1),
    (256, 64, 32, 64, 4, 2), (256, 64, 32, 64, 6, 2), (128, 64, 32, 64, 6, 2), (128, 64, 32, 64, 4, 3),
)  # fmt: skip
EXACT = 1.005  # times the error of the released launch against float64
GARBAGE = 0.02  # more than any right launch has
L2_BYTES = 250_000_000  # more than any has


def launches_of(most: int) -> list[Launch]:
    """Return what is tried for so many rows."""
    return [(*launch, "mma") for launch in MMA if most <= MMA_ROWS] + [(*launch, "wgmma") for launch in WGMMA]


def tuning_config(most: int, launch: Launch) -> dict[str, Any]:
    """Return what the patch humming-launch-params tells Humming: a block has all rows, and mma of BF16 at least 16."""
    n, k, warp_n, warp_k, stages, blocks, mma = launch
    block = most if mma == "wgmma" else -(-most // 16) * 16
    return {
        "block_shape": (block, n, k), "warp_shape": (block, warp_n, warp_k), "num_stages": stages,
        "num_ctas_per_sm": blocks, "mma_type": mma, "use_stream_k": True, "use_tma": mma == "wgmma",
        "use_warp_spec": mma == "wgmma",
    }  # fmt: skip


def by_interval(intervals: Sequence[tuple[int, int, Any]], tokens: Sequence[int]) -> dict[int, int]:
    """Return the end of each of Humming's intervals of rows that is used, with the most tokens that are in it."""
    ends = {count: high for count in sorted(tokens) for low, high, _ in intervals if low < count <= high}
    return {high: count for count, high in ends.items()}


class Matrix:
    """A random NVFP4 matrix as vLLM hands it to Humming, more copies than the L2 holds, and its exact product."""

    def __init__(self, torch: Any, n: int, k: int, tokens: Sequence[int]) -> None:
        from humming.schema import BaseWeightSchema, HummingInputSchema  # type: ignore[import-not-found,unused-ignore]
        from humming.transform import (  # type: ignore[import-not-found,unused-ignore]
            prepare_and_transform_humming_tensors as transformed,
        )
        from humming.tune import get_heuristics_config  # type: ignore[import-not-found,unused-ignore]

        self.torch = torch
        random = torch.Generator(device="cuda").manual_seed(0)
        packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda", generator=random)
        scale = (torch.rand(n, k // 16, device="cuda", generator=random) * 1.5 + 0.5).to(torch.float8_e4m3fn)
        whole = torch.tensor([64.0], device="cuda")
        schema, tensors = BaseWeightSchema.from_config(NVFP4).convert_humming(
            tensors={"weight_packed": packed, "weight_scale": scale, "weight_global_scale": whole},
            shape_n_stacks=[n], shape_k_stacks=[k], param_dtype=torch.bfloat16,
        )  # fmt: skip
        layer, tensors = transformed(
            tensors=tensors, shape_n=n, shape_k=k, weight_schema=schema, input_schema=HummingInputSchema(),
            torch_dtype=torch.bfloat16, device=torch.device("cuda:0"), **PADDING,
        )  # fmt: skip
        self.layer = layer.to_str()
        self.intervals = get_heuristics_config(layer, **COMPUTE, device=0)
        self.ends = by_interval(self.intervals, tokens)
        more = max(2, L2_BYTES // sum(tensor.nbytes for tensor in tensors.values()))
        self.copies = [tensors, *({name: own.clone() for name, own in tensors.items()} for _ in range(more))]
        self.x = torch.randn(max(tokens), k, device="cuda", generator=random).to(torch.bfloat16)
        self.product = torch.cat([self.exact(packed[at:][:2048], scale[at:][:2048]) for at in range(0, n, 2048)], 1)
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        self.locks = torch.zeros(processors * 8, dtype=torch.int32, device="cuda")  # as vLLM's create_humming_locks

    def exact(self, packed: Any, scale: Any) -> Any:
        """Return the product with some rows of the matrix, in float64."""
        part = packed.long()
        codes = self.torch.stack((part & 15, part >> 4), -1).flatten(1)
        weights = self.torch.tensor(VALUES, device="cuda")[codes] * scale.float().repeat_interleave(16, 1) / 64
        return self.x.double() @ weights.double().T

    def builds(self, most: int, launch: Launch) -> bool:
        """Build a launch; return whether Humming takes it, and its blocks fit an SM: if they do not, they wait."""
        from humming.kernel.humming import HummingKernel  # type: ignore[import-not-found,unused-ignore]

        room = self.torch.cuda.get_device_properties(0).shared_memory_per_multiprocessor
        try:
            with self.torch.cuda.device(0):
                kernel = HummingKernel(**(json.loads(self.layer) | COMPUTE | tuning_config(most, launch)))
        except Exception:  # refusals are assertions, the compiler's are RuntimeError
            return False
        return bool((kernel.estimated_smem_size + 1024) * launch[5] <= room)

    def multiply(self, copy: dict[str, Any], most: int, launch: Launch | None) -> Any:
        """Return the product of the interval's tokens with one copy."""
        from humming.ops import humming_gemm  # type: ignore[import-not-found,unused-ignore]

        released = next(released for _, high, released in self.intervals if high == most)
        tuning = tuning_config(most, launch) if launch else released
        return humming_gemm(
            layer_config=self.layer, compute_config=json.dumps(COMPUTE), tuning_config=json.dumps(tuning),
            inputs=self.x[: self.ends[most]], locks=self.locks, weight=copy["weight"],
            weight_scale=copy["weight_scale"], weight_scale_2=copy["weight_scale_2"],
        )  # fmt: skip

    def error(self, most: int, launch: Launch | None) -> float:
        """Return the relative error against float64."""
        product = self.product[: self.ends[most]]
        self.locks.zero_()
        out = self.multiply(self.copies[0], most, launch).double()
        return float(((out - product).norm() / product.norm()).item())

    def microseconds(self, most: int, launch: Launch | None) -> float:
        """Return the median time of a launch, in a CUDA graph over all copies."""
        launches = max(1, 48 // len(self.copies)) * len(self.copies)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for number in range(launches):
                self.multiply(self.copies[number % len(self.copies)], most, launch)
        return gpu_ms(self.torch, graph.replay) * 1000 / launches

    def row(self, most: int, major: int, in_time: Callable[[], bool]) -> dict[str, Any]:
        """Return what was found for an interval. Raises Impossible if even the released launch is wrong."""
        error = self.error(most, None)
        if not error <= GARBAGE:
            raise Impossible(f"Humming's own product has an error of {error:.3f}")
        took, apart = functools.partial(self.microseconds, most), functools.partial(self.error, most)
        search, launches = Search(took, apart, error * EXACT, in_time), launches_of(most)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            built = pool.map(lambda launch: in_time() and self.builds(most, launch), launches)
            usable = [launch for launch, fits in zip(launches, built, strict=True) if fits]
        search.attempt(usable)
        layer = json.loads(self.layer)
        return search.row(f"matrix:{major},{layer['shape_n']},{layer['shape_k']},{most}")


def matrix_rows(torch: Any, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each matrix and interval of rows, few rows first."""
    if not job["matrices"]:
        return
    import humming.jit.compiler as compiler  # type: ignore[import-not-found,unused-ignore]

    compiler.print = lambda *_, **__: None  # its errors for launches that it refuses
    in_time, major = timer(job["matrices_seconds"]), torch.cuda.get_device_capability(0)[0]
    matrices = [Matrix(torch, n, k, job["tokens"]) for n, k in job["matrices"]]
    for most, number in sorted((most, number) for number, matrix in enumerate(matrices) for most in matrix.ends):
        if in_time():
            yield matrices[number].row(most, major, in_time)
