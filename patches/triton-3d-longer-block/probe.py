"""Which kernel does vLLM launch for a step that verifies 15 drafts? Its choice is vLLM's, the kernels are recorded.

Up to vLLM 0.32 triton-verify-split-kv splits up to 8 tokens; without it, this is open for 2 tokens too.
"""

from launching import FULL, SLIDING, builder, split


def probe():
    seen = {group: longest(group) for group in (FULL, SLIDING)}
    said = f"the cache is split up to {seen[FULL]} tokens a request in full layers, {seen[SLIDING]} in sliding ones"
    if seen[FULL] <= 8:
        return True, said
    assert seen == {FULL: 16, SLIDING: 16}, seen
    rows = builder(k=15, requests=4)
    assert split(rows, 16, requests=4), "8 blocks of queries each are 32"
    assert not split(builder(k=15, requests=5), 16, requests=5), "40 blocks are enough programs"
    assert not split(rows, 5, causal=False)
    return False, said


def longest(group):
    some = builder(group, model=group, k=15, requests=2)
    return max(new for new in range(1, 40) if split(some, new))
