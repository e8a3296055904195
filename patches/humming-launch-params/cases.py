"""A step's products with NVFP4 matrices, as vLLM's own kernel class asks Humming for them.

There are none without a GPU, and none where vLLM chooses another kernel than Humming's.
"""

import itertools
from types import SimpleNamespace

COPIED = 250_000_000  # bytes of a matrix and its copies, which are read in turn: more than any L2 holds
BOUND = 2**-6  # of the largest value: a sum in another order, rounded to the 8 bits of bfloat16


def cases(job):
    if not job["matrices"] or job["device"] != "cuda" or not humming_multiplies():
        return []
    found = []
    for requests in sorted({load[0] for load in job["loads"]}):
        shortest = min(context for count, context in job["loads"] if count == requests)
        rows = requests * (job["k"] + 1)
        for n, k, count in job["matrices"]:
            found.append(
                {
                    "name": f"{rows} rows times a matrix of {n:,} x {k:,}",
                    "part": "step",
                    "load": [requests, shortest],
                    "times": count,
                    "bound": BOUND,
                    "make": maker(n, k, rows),
                }
            )
    return found


def humming_multiplies():
    """Whether vLLM chooses Humming on this GPU, as for a layer that it loads."""
    from vllm.model_executor.kernels.linear import init_nvfp4_linear_kernel

    return type(init_nvfp4_linear_kernel()).__name__ == "HummingNvFp4LinearKernel"


def maker(n, k, rows):
    return lambda: call(n, k, rows)


def call(n, k, rows, device="cuda"):
    import torch
    from vllm.model_executor.kernels.linear import init_nvfp4_linear_kernel

    random = torch.Generator(device=device).manual_seed(0)
    layer, kernel = random_layer(n, k, random, device), init_nvfp4_linear_kernel()
    kernel.process_weights_after_loading(layer)
    names = [name for name, _ in layer.named_parameters(recurse=False)]
    size = sum(getattr(layer, name).nbytes for name in names)
    copies = [layer]
    for _ in range(COPIED // size):
        own = {name: getattr(layer, name).clone() for name in names}
        copies.append(SimpleNamespace(weight_schema=layer.weight_schema, **own))
    turns = itertools.cycle(copies)
    x = torch.randn(rows, k, generator=random, device=device).to(torch.bfloat16)
    return lambda: kernel.apply_weights(next(turns), x)


def random_layer(n, k, random, device):
    """Return what vLLM's kernels find of a linear layer after loading: codes of FP4, and their scales."""
    import torch

    def parameter(values):
        return torch.nn.Parameter(values, requires_grad=False)

    layer = torch.nn.Module()
    layer.input_size_per_partition, layer.output_partition_sizes = k, [n]
    layer.has_bias, layer.params_dtype = False, torch.bfloat16
    layer.weight = parameter(torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device, generator=random))
    scale = torch.rand(n, k // 16, device=device, generator=random) * 1.5 + 0.5
    layer.weight_scale = parameter(scale.to(torch.float8_e4m3fn))
    layer.weight_global_scale = parameter(torch.tensor([1 / 64.0], device=device))  # vLLM inverts it
    return layer
