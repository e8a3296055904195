"""Up to how many requests is the cache of Gemma 4 31B's full layers split? vLLM's builder, its kernels recorded.

The model's numbers are 16 KV heads, those of the sliding layers, and 512, the largest head.
"""

from launching import FULL, SLIDING, builder, split

MODEL = (16, 512)


def probe():
    full, sliding = builder(FULL, model=MODEL, k=0, requests=64), builder(SLIDING, model=MODEL, k=0, requests=64)
    most = max(one for one in range(1, 65) if split(full, 1, requests=one))
    width = sliding.softmax_segm_output.shape[-1]
    assert split(sliding, 1, requests=8), "128 // 16"
    assert not split(sliding, 1, requests=9)
    same = builder(FULL, model=FULL, k=0, requests=64)
    assert same.seq_threshold_3D == 32, "a model with one kind of layer keeps its threshold"
    assert same.softmax_segm_output.shape[-1] == 512
    seen = f"full layers are split up to {most} requests; the sliding layers' scratch is for heads of {width}"
    if (most, width) == (8, 512):
        return True, seen
    assert (most, width) == (32, 256), seen
    check_graphs()
    return False, seen


def check_graphs():
    """With CUDA graphs the threshold is the size of a graph near it."""
    assert builder(FULL, model=MODEL, graphs=[1, 2, 4, 8, 16, 24, 30]).seq_threshold_3D == 30
