"""The released kernels and the patched ones, in Triton's interpreter: do they give a token the same?

Batches, bounds and their reasons are those of triton-verify-split-kv; here a request has 9 to 16 new tokens.
"""

import runpy
from pathlib import Path

import interpreted
import torch
from interpreted import Batch

shared = runpy.run_path(str(Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"))
FULL, SLIDING = shared["FULL"], shared["SLIDING"]

BATCHES = {
    "full, 16 tokens, graph padding": Batch(new=(16, 16), cached=(100, 0), **FULL, **shared["PADDED"]),
    "sliding, 16 tokens, graph padding": Batch(new=(16, 16), cached=(100, 0), **SLIDING, **shared["PADDED"]),
    "full, ragged": Batch(new=(9, 1, 13), cached=(63, 40, 7), **FULL),
    "sliding, ragged, float16": Batch(new=(9, 1, 13), cached=(63, 40, 7), **SLIDING, dtype=torch.float16),
    "sliding, not causal": Batch(new=(12,), cached=(60,), **shared["ONE"], causal=False),
    "sliding, causal by request": Batch(new=(12, 9), cached=(60, 20), **shared["ONE"], causal=(False, True)),
    "full, an image": Batch(new=(12,), cached=(60,), **FULL, images=((58, 70),)),
    "sliding, INT8 by token and head": Batch(new=(12, 3), cached=(60, 20), **SLIDING, scales="int8"),
    "full, scores of -200": Batch(new=(9, 2), cached=(63, 30), **FULL, scores=-200.0),
}


def numbers():
    return shared["computed"](interpreted.attention(), BATCHES)
