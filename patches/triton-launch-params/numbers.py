"""Prompts by the released launch and by the patched one, in Triton's interpreter: do they give a token the same?

Bounds and their reasons are those of triton-verify-split-kv: blocks and tiles only change the order of the additions.
The interpreter computes float32, so the table's rows for FP8 are taken for it, on a FAKE GPU of its architecture.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import interpreted
import torch
from interpreted import Batch

shared = runpy.run_path(str(Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"))
FULL, SLIDING = shared["FULL"], shared["SLIDING"]

BATCHES = {
    "full, a prompt": Batch(new=(70,), cached=(0,), **FULL),
    "full, chunks and a token": Batch(new=(33, 1), cached=(40, 90), **FULL, **shared["PADDED"]),
    "sliding, a prompt": Batch(new=(70,), cached=(0,), **SLIDING),
    "sliding, chunks and a token": Batch(new=(33, 1, 17), cached=(40, 90, 3), **SLIDING, **shared["PADDED"]),
    "full, ALiBi": Batch(new=(20,), cached=(30,), **FULL, alibi=True),
}


def numbers():
    module = interpreted.attention()
    module.current_platform = SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_cuda=lambda: True,
        get_device_capability=lambda: SimpleNamespace(major=9),
        is_device_capability_family=lambda _: False,
    )
    if table := getattr(module, "PREFILL_LAUNCH", None):
        table |= {(9, head, 4): launch for (_, head, _), launch in table.items()}
    return shared["computed"](module, BATCHES)
