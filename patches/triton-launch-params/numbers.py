"""Prompts by the released launch and by the patched one, in Triton's interpreter: do they give a token the same?

Bounds and their reasons are those of triton-verify-split-kv: blocks and tiles only change the order of the additions.
The interpreter computes float32, so the table's rows for FP8, and then for BF16, are taken for it, on a FAKE GPU of its
architecture.
"""

import runpy
from pathlib import Path

import interpreted
from interpreted import Batch

shared = runpy.run_path(str(Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"))
FULL, SLIDING = shared["FULL"], shared["SLIDING"]
ONE = {"head": 256, "heads": (16, 1), "window": 17}  # token in a block of queries

BATCHES = {
    "full, a prompt": Batch(new=(70,), cached=(0,), **FULL),
    "full, chunks and a token": Batch(new=(33, 1), cached=(40, 90), **FULL, **shared["PADDED"]),
    "sliding, a prompt": Batch(new=(70,), cached=(0,), **SLIDING),
    "sliding, chunks and a token": Batch(new=(33, 1, 17), cached=(40, 90, 3), **SLIDING, **shared["PADDED"]),
    "full, ALiBi": Batch(new=(20,), cached=(30,), **FULL, alibi="linear"),
    # without a causal mask the released kernel is exact where a block has one token, as with 16 queries for a KV head
    "sliding, not causal": Batch(new=(40,), cached=(5,), **ONE, causal=False),
    "sliding, causal by request": Batch(new=(40, 21), cached=(5, 30), **ONE, causal=(False, True)),
    "full, not causal": Batch(new=(20,), cached=(30,), **FULL, causal=False),
    "sliding, images in the window": Batch(
        new=(70, 33), cached=(0, 9), **SLIDING, images=((9, 40), (0, 0)), clamped=True
    ),
    "full, an image": Batch(new=(20,), cached=(9,), **FULL, images=((12, 25),)),
    "sliding, INT8 by token and head": Batch(new=(33, 17), cached=(20, 3), **SLIDING, scales="int8"),
    "full, FP8 by token and head": Batch(new=(20,), cached=(30,), **FULL, scales="fp8"),
}


BF16 = ("full, chunks and a token", "sliding, chunks and a token")
"""Batches that are computed with the rows for BF16, too."""


def numbers():
    module = interpreted.attention()
    module.current_platform = interpreted.gpu(9)
    yield from _with_rows(module, 1, BATCHES)
    yield from _with_rows(module, 2, {f"{name}, BF16": BATCHES[name] for name in BF16})


def _with_rows(module, size, batches):
    """Compute with the table's rows for elements of `size` bytes."""
    if table := getattr(module, "PREFILL_LAUNCH", None):
        rows = [(head, launch) for (_, head, element), launch in table.items() if element == size]
        table |= {(9, head, 4): launch for head, launch in rows}
    yield from shared["computed"](module, batches)
