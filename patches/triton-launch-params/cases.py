"""The last tokens of a prompt, at a server's own layers and contexts.

In the interpreter the rows for FP8 are taken for float32, on a FAKE GPU of their architecture, as in numbers.py.
"""

from pathlib import Path

import attention_cases

NUMBERS = Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"
WIDE = 4  # times as wide as a token is a matrix


def cases(job):
    if job["device"] == "cpu":
        pretend(job)
    bounds = attention_cases.bounds(NUMBERS)
    found = attention_cases.prompts(job, bounds)
    if found:
        found += [rest(job, bounds, context) for requests, context in job["loads"] if requests == 1]
    return found


def rest(job, bounds, context):
    """What the patch leaves alone of a prompt: as many products with matrices as the model makes, in BF16."""
    import torch

    tokens, hidden = min(job["batch"], context), job["hidden"]
    kind = torch.bfloat16 if job["device"] == "cuda" else torch.float32
    return {
        "name": f"products with matrices, {tokens} tokens of {context:,}",
        "part": "rest",
        "load": [1, context],
        "times": max(1, round(job["weights"] / (WIDE * hidden**2))),
        "bound": bounds[kind],
        "make": lambda: product(job["device"], tokens, hidden, kind),
    }


def product(device, tokens, hidden, kind):
    import torch

    random = torch.Generator(device=device).manual_seed(0)
    rows = torch.randn(tokens, hidden, generator=random, device=device).to(kind)
    matrix = torch.randn(hidden, WIDE * hidden, generator=random, device=device).to(kind)
    return lambda: rows @ matrix


def pretend(job):
    import interpreted

    module = attention_cases.tree(job)
    module.current_platform = interpreted.gpu(9)
    table = getattr(module, "PREFILL_LAUNCH", {})
    table |= {(9, head, 4): launch for (_, head, size), launch in list(table.items()) if size == 1}
