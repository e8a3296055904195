"""Expands temperature, top_k and top_p of three requests to their drafted tokens, as vLLM does on a CPU.

The compiled operator is replaced by the same in Python: it reads and writes int64 alone
(csrc/cpu/spec_decode_utils.cpp).
"""

from unittest.mock import patch

DRAFTED = (2, 0, 3)


def probe() -> tuple[bool, str]:
    import torch
    from vllm.utils import cpu_triton_utils

    def operator(output, values, ends, replace_from, replace_to):
        assert {output.dtype, values.dtype, ends.dtype} == {torch.int64}
        found = torch.where(values == replace_from, replace_to, values)
        output.copy_(torch.repeat_interleave(found, torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int64))))

    def expanded(values, replace_from=0, replace_to=0):
        ends = torch.tensor(DRAFTED, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        output = torch.full((sum(DRAFTED),), -7, dtype=values.dtype)  # stands for uninitialized memory
        with patch.object(torch.ops._C, "expand_kernel_impl", operator, create=True):
            cpu_triton_utils._expand_kernel_impl(output, values, ends, replace_from, replace_to, MAX_NUM_TOKENS=128)
        return [round(value, 3) for value in output.tolist()]

    seen = {
        "temperature": expanded(torch.tensor([0.7, 1.0, 0.0]), 0, 1),
        "top_k": expanded(torch.tensor([64, 2048, 5], dtype=torch.int32)),
        "top_p": expanded(torch.tensor([0.95, 1.0, 0.5])),
    }
    said = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in seen.items())
    if all(set(values) == {-7} for values in seen.values()):
        return True, f"nothing is written ({said}), and then: {used(seen)}"
    assert seen["temperature"] == [0.7, 0.7, 1.0, 1.0, 1.0], seen
    assert seen["top_k"] == [64, 64, 5, 5, 5], seen
    assert seen["top_p"] == [0.95, 0.95, 0.5, 0.5, 0.5], seen
    assert expanded(torch.tensor([1, 2, 3])) == [1, 1, 3, 3, 3]
    return False, said


def used(seen) -> str:
    """Return what top_k and top_p that nobody wrote lead to."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    k, p = torch.tensor(seen["top_k"], dtype=torch.int32), torch.tensor(seen["top_p"])
    try:
        apply_top_k_top_p_pytorch(torch.rand(len(k), 4), k, p)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "no error"
