"""The released kernels and the patched ones, in Triton's interpreter: do they give a token the same?

A bound is a share of the largest value. A result is a mean of at most 300 values, whose weights add up to one; the
patch adds them in another order and takes the maximum of the scores over other tiles. In float32 each addition may
round by 2**-24, so 300 * 2**-24 = 1.8e-5; in float16 the weights have 11 bits, and 2**-10 is one unit of the last place
on each side. A score of -200 is a sum of up to 512 products, each of which may round by 200 * 2**-24.

An FP8 cache with one scale (`kv_cache_dtype: fp8`) has FP8 queries, and its weights are rounded to FP8 too: 3 bits, so
by up to 2**-4 each. The released kernel is off attention as it is defined by 0.084 to 0.088 (2-norm), and by 0.12 to
0.17 of the largest value; a piece of the cache that is left out would be off by its whole share.
"""

import interpreted
import torch
from interpreted import Batch

FP8 = {"dtype": torch.float8_e4m3fn, "scales": "tensor"}
BOUND = {torch.float32: 1.8e-5, torch.float16: 2**-10, torch.float8_e4m3fn: 2**-2}
ON_A_GPU = {torch.bfloat16: 2**-7}
"""The same for bfloat16, which has 8 bits where float16 has 11, and which the interpreter gets wrong."""
FP8_NORM = 0.1
FULL = {"head": 512, "heads": (8, 1)}  # 2 tokens in a block of queries
SLIDING = {"head": 256, "heads": (4, 2), "window": 48}  # 8 tokens in a block
ONE = {"head": 256, "heads": (16, 1), "window": 17}  # token in a block of queries
PADDED = {"padding": (2, 3)}

BATCHES = {
    "full, 5 tokens, three requests, graph padding": Batch(new=(5, 5, 5), cached=(37, 140, 0), **FULL, **PADDED),
    "sliding, 5 tokens, three requests, graph padding": Batch(new=(5, 5, 5), cached=(37, 140, 0), **SLIDING, **PADDED),
    "full, ragged": Batch(new=(1, 8, 3, 2), cached=(90, 21, 0, 64), **FULL),
    "sliding, ragged": Batch(new=(1, 8, 3, 2), cached=(90, 21, 0, 64), **SLIDING),
    "heads of 256, no window": Batch(new=(4, 6), cached=(120, 7), heads=(4, 2)),
    "heads of 512, a window": Batch(new=(4, 6), cached=(120, 7), **FULL, window=48),
    # the first request's first token sees nothing of the piece in which its block's second token lies
    "full, scores of -200": Batch(new=(5, 2), cached=(63, 30), **FULL, scores=-200.0),
    # below -88, every release up to 0.32 is wrong where a tile lies before a token's window: exp() is 0 there
    "sliding, scores of -80": Batch(new=(5, 2), cached=(60, 30), **SLIDING, scores=-80.0),
    "full, ALiBi": Batch(new=(5, 3), cached=(60, 20), **FULL, alibi="linear"),
    "sliding, not causal": Batch(new=(5, 3), cached=(60, 20), **ONE, causal=False),
    "sliding, causal by request": Batch(new=(5, 3), cached=(60, 20), **ONE, causal=(False, True)),
    "full, not causal": Batch(new=(5,), cached=(90,), **FULL, causal=False),
    "sliding, an image in the window": Batch(new=(8,), cached=(60,), **SLIDING, images=((58, 64),), clamped=True),
    "full, an image": Batch(new=(8,), cached=(60,), **FULL, images=((58, 64),)),
    "sliding, INT8 by token and head": Batch(new=(5, 3), cached=(60, 20), **SLIDING, scales="int8"),
    "full, FP8 by token and head": Batch(new=(5, 3), cached=(60, 20), **FULL, scales="fp8"),
    "full, FP8 with one scale": Batch(new=(5,), cached=(140,), **FULL, **FP8),
    "sliding, FP8 with one scale": Batch(new=(5, 3), cached=(60, 20), **SLIDING, **FP8),
    "full, ragged, FP8 with one scale": Batch(new=(1, 8, 3), cached=(90, 21, 64), **FULL, **FP8),
    "full, sinks": Batch(new=(5, 1), cached=(60, 20), **FULL, sinks=True),
    "full, one token each": Batch(new=(1, 1), cached=(75, 0), **FULL, **PADDED),
    "full, 9 and 16 tokens": Batch(new=(9, 16), cached=(30, 1), **FULL),
    "sliding, 16 tokens": Batch(new=(16,), cached=(70,), **SLIDING),
    "full, float16": Batch(new=(5, 3), cached=(100, 20), **FULL, dtype=torch.float16),
    "sliding, float16": Batch(new=(5, 3), cached=(100, 20), **SLIDING, dtype=torch.float16),
}


def numbers():
    return computed(interpreted.attention(), BATCHES)


def computed(module, batches):
    """Yield results by name, with their bounds; each is also compared with attention as it is defined."""
    for name, batch in batches.items():
        bound = BOUND[batch.dtype] + abs(batch.scores) * batch.head * 2**-24
        found = interpreted.attend(module, batch)
        right = interpreted.exact(batch)
        off = ((found - right).abs().max() / right.abs().max()).item()
        assert off <= bound, f"{name}: {off:.1e} off what attention is, where {bound:.1e} is rounding"
        if batch.scales == "tensor":
            norm = ((found - right).norm() / right.norm()).item()
            assert norm <= FP8_NORM, (
                f"{name}: {norm:.3f} off what attention is, where FP8 rounds by less than {FP8_NORM}"
            )
        yield name, found, bound
