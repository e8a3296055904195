"""With which parameters is Triton's attention launched for a chunk of a prompt? vLLM's choice, its kernels recorded."""

from unittest.mock import patch

import interpreted
import torch
from launching import FULL, SLIDING, builder, launch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
NAMES = ("BLOCK_M", "TILE_SIZE", "num_warps", "num_stages")


def probe():
    stock = {"BLOCK_M": 16, "TILE_SIZE": 32, "num_warps": None, "num_stages": None}
    check_others(stock)
    seen = {group[1]: parameters(9, group, 2048) for group in (FULL, SLIDING)}
    said = "; ".join(f"heads of {size}: {', '.join(map(str, row.values()))}" for size, row in seen.items())
    if seen == {512: stock, 256: stock}:
        return True, said
    assert [[*row.values()] for row in seen.values()] == [[32, 64, 8, 2], [128, 64, 8, 2]], seen
    bf16 = [[*parameters(9, group, 2048, BF16).values()] for group in (FULL, SLIDING)]
    assert bf16 == [[64, 32, 8, 2], [128, 64, 8, 2]], bf16
    check_own_rows()
    return False, said


def check_own_rows():
    """Rows that somebody measured serve the GPU that they name."""
    from vllm.v1.attention.ops import triton_unified_attention as module

    own = module._own_launches("prompt:12,512,1=16,64,4,2 matrix:9,1,1,8=1 prompt:12,256,2=64,32,8,3")
    assert own == {(12, 512, 1): (16, 64, 4, 2), (12, 256, 2): (64, 32, 8, 3)}
    bad = "garbage 9,256,1= 1e2 0 9,256,1=16,16,4,2 9,256,2=48,64,8,2 9,256,2=-128,64,8,2"
    bad += " 9,256=64,64,8 9,256,2=64,64,8,0 \uff19,256,2=64,64,8,2"
    bad = " ".join(["12,512,2=16,64,4,2", *(f"prompt:{row}" for row in bad.split())])
    usable = "prompt:12,512,1=16,64,4,2"
    assert module._own_launches(f"{bad} {usable}") == {(12, 512, 1): (16, 64, 4, 2)}, "others are ignored"
    with patch.dict(module.OWN_LAUNCH, own):
        assert [*parameters(12, FULL, 2048).values()] == [16, 64, 4, 2]
        assert [*parameters(12, SLIDING, 2048, BF16).values()] == [64, 32, 8, 3]
        assert parameters(8, FULL, 2048)["num_warps"] is None


def check_others(stock):
    """What is launched as released on both trees."""
    from vllm.v1.attention.ops import triton_unified_attention as module

    for major in (8, 10, 12):
        assert parameters(major, FULL, 2048) == stock, f"no figures for {major}.x"
    assert parameters(9, FULL, 2048, torch.float32) == stock, "no figures for float32"
    for new in (1, 5, 16):
        assert parameters(9, FULL, new)["BLOCK_M"] == 16, f"{new} tokens are no prompt"
    for causal in (False, torch.ones(2, dtype=torch.int32)):
        assert parameters(9, FULL, 2048, causal=causal) == stock, "the mask is not causal for every request"
    with patch.object(module, "is_batch_invariant", True):
        assert parameters(9, FULL, 2048) == stock


def parameters(major, group, new, dtype=FP8, **more):
    from vllm.v1.attention.ops import triton_unified_attention as module

    with patch.object(module, "current_platform", interpreted.gpu(major)):
        options = launch(builder(group, model=group, requests=2), new, dtype=dtype, **more)
    return {name: options.get(name) for name in NAMES}
