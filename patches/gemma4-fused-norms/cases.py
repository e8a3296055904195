"""The norms of a step's rows, as many as a dense Gemma 4 has: what Inductor compiles of them, and the patch's kernel.

Without a GPU the released side is not compiled, and the kernel runs in Triton's interpreter.
"""

import runpy
from pathlib import Path

import attention_cases

EPS = 1e-6


def cases(job):
    import torch

    if "norms" not in job["parts"]:
        return []
    numbers = runpy.run_path(str(Path(__file__).with_name("numbers.py")))
    bounds = numbers["BOUND"] | numbers["ON_A_GPU"]
    dtype = torch.bfloat16 if job["device"] == "cuda" else torch.float32
    found = []
    for requests in sorted({load[0] for load in job["loads"]}):
        shortest = min(context for count, context in job["loads"] if count == requests)
        rows = requests * (job["k"] + 1)
        found.append(
            {
                "name": f"norms of {rows} rows",
                "part": "step",
                "load": [requests, shortest],
                "times": job["norms"],
                "bound": bounds[dtype],
                "make": maker(job, numbers["released"], rows, dtype),
            }
        )
    return found


def maker(job, released, rows, dtype):
    return lambda: call(job, released, rows, dtype)


def call(job, released, rows, dtype):
    import torch

    attention_cases.tree(job)
    from vllm.model_executor.models import gemma4

    name = "_norm_add_norm_launch"
    run = getattr(gemma4, name) if hasattr(gemma4, name) else released
    if run is released and job["device"] == "cuda":
        run = torch.compile(released, dynamic=True)
    random = torch.Generator(device=job["device"]).manual_seed(0)

    def values(*shape):
        return torch.randn(*shape, generator=random, device=job["device"]).to(dtype)

    hidden = job["hidden"]
    given = values(rows, hidden), values(rows, hidden), values(hidden), values(hidden), None, EPS
    return lambda: torch.stack(run(*given))
