"""Which kernel does vLLM launch for a step that verifies four drafts? Its choice is vLLM's, the kernels are recorded.

Whatever the tree, one token a request has its cache split, and prompts, batch invariance, masks that are not causal and
batches with enough programs have it whole.
"""

import inspect
from types import SimpleNamespace
from unittest.mock import patch

import torch
from launching import SLIDING, builder, split


def probe():
    check_others()
    verifying = builder(k=4)
    found = {new: split(verifying, new) for new in (2, 5, 8)}
    if not any(found.values()):
        return True, "2, 5 and 8 tokens of one request: one program for each KV head reads the whole cache"
    assert all(found.values()), found
    check_new()
    return False, "2 to 8 tokens of a request are split, in every batch that the scratch holds"


def check_others():
    """What is the same on both trees."""
    from vllm.v1.attention.ops import triton_unified_attention as module

    some = builder(k=4, requests=32)
    assert split(some, 1)
    assert split(some, 1, requests=32), "the threshold is 128 // 4"
    assert not split(some, 1, requests=33), "more than the threshold"
    longest = getattr(module, "MAX_3D_QUERY_LEN", 8)  # triton-3d-longer-block moves it
    for new in (longest + 1, 2048):
        assert not split(some, new), f"{new} tokens are a prompt"
    assert not split(some, 5, causal=False)
    assert not split(some, 5, causal=torch.ones(1, dtype=torch.bool)), "causal by request"
    assert not split(some, 5, mm_prefix_range=torch.empty(1, 1, 2, device="meta")), "image ranges"
    with patch.object(module, "is_batch_invariant", True):
        assert not split(some, 5)
        assert not split(some, 1)
    large = SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn, is_device_capability_family=lambda one: one == 100)
    with patch.object(module, "current_platform", large):
        assert not split(builder(SLIDING, k=4), 5), "a B200 has its own launch for heads of 256"


def check_new():
    """Where a patched tree splits, and where it does not."""
    from vllm.v1.kv_cache_interface import KVQuantMode

    some = builder(k=4, requests=32)
    assert split(some, 5, alibi_slopes=torch.empty(32, device="meta")), "the kernel that splits knows ALiBi"
    assert split(some, 5, requests=10), "10 requests with 3 blocks of queries are 30 of 32"
    assert not split(some, 5, requests=11), "33 blocks are enough programs"
    assert split(builder(k=4, requests=2), 5, requests=2)
    assert not split(builder(k=4, requests=2), 5, requests=3), "the scratch has no rows for a third"
    assert not split(builder(k=0, requests=2), 5, requests=2), "nor without a draft"
    assert split(builder(k=2, parallel=True, requests=2), 5, requests=2), "a parallel drafter has twice the tokens"
    assert not split(builder(k=4, requests=2, kv_quant_mode=KVQuantMode.INT4_PER_TOKEN_HEAD), 5, requests=2)
    check_graphs()


def check_graphs():
    """Three requests of 5 tokens in a graph: the scratch has rows for its padding too."""
    from vllm.config import VllmConfig

    exact = "uniform_decode_sizes" in inspect.getsource(VllmConfig)  # from 0.29 on, one graph fits the largest batch
    graphs = [5, 10, *([15] if exact else []), 20, 25, 30]
    largest = builder(k=4, requests=3, graphs=graphs)
    assert split(largest, 5, requests=3, tokens=15 if exact else 20)
