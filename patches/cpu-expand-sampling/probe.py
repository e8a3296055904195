"""Expands temperature, top_k and top_p of several requests to their drafted tokens, as vLLM does on a CPU.

Both the function that a CPU runs and the sampler that calls it are asked. The compiled operator is replaced by the same
in Python: it reads and writes int64 alone (csrc/cpu/spec_decode_utils.cpp).
"""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

DRAFTED = (2, 0, 3)
BATCHES = (DRAFTED, (0, 1), (1, 0), (4,), (0, 0), (1, 1, 1, 1, 2), (7, 0, 0, 130))
"""Drafted tokens of each request."""


def probe() -> tuple[bool, str]:
    import torch

    seen = {
        "temperature": expanded(torch.tensor([0.7, 1.0, 0.0]), DRAFTED, 0, 1),
        "top_k": expanded(torch.tensor([64, 2048, 5], dtype=torch.int32), DRAFTED),
        "top_p": expanded(torch.tensor([0.95, 1.0, 0.5]), DRAFTED),
    }
    said = "; ".join(f"{name} {', '.join(shown(values))}" for name, values in seen.items())
    if all(set(values.tolist()) == {-7} for values in seen.values()):
        return True, f"nothing is written ({said}), and then: {used(seen)}"
    check_values()
    check_sampler()
    return False, said


def shown(values) -> list[str]:
    return [str(round(value, 3)) for value in values.tolist()]


@contextlib.contextmanager
def compiled():
    """The operator, which vLLM compiles for CPUs, in Python."""
    import torch

    def operator(output, values, ends, replace_from, replace_to):
        assert {output.dtype, values.dtype, ends.dtype} == {torch.int64}
        found = torch.where(values == replace_from, replace_to, values)
        output.copy_(torch.repeat_interleave(found, torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int64))))

    with patch.object(torch.ops._C, "expand_kernel_impl", operator, create=True):
        yield


def kernel():
    """What a CPU without Triton runs in place of the kernel."""
    from vllm.utils import cpu_triton_utils

    if hasattr(cpu_triton_utils, "expand_kernel"):
        return cpu_triton_utils.expand_kernel.func
    from vllm import triton_utils
    from vllm.platforms.cpu import CpuPlatform
    from vllm.triton_utils import dispatcher

    registered = {}
    with (
        patch.object(triton_utils, "HAS_TRITON", False),
        patch.object(dispatcher, "register_kernels", registered.update),
    ):
        CpuPlatform.register_triton_kernel_overrides()
    return registered["vllm.v1.sample.rejection_sampler.expand_kernel"]


def expanded(values, drafted, replace_from=0, replace_to=0):
    import torch

    ends = torch.tensor(drafted, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    output = torch.full((sum(drafted),), -7, dtype=values.dtype)  # stands for uninitialized memory
    given = values.clone()
    with compiled():
        kernel()(output, values, ends, replace_from, replace_to, MAX_NUM_TOKENS=128)
    assert torch.equal(values, given), "the values of the batch are changed"
    return output


def reference(values, drafted, replace_from=0, replace_to=0):
    import torch

    rows = [
        replace_to if value == replace_from else value
        for value, count in zip(values.tolist(), drafted, strict=True)
        for _ in range(count)
    ]
    return torch.tensor(rows, dtype=values.dtype)


def check_values() -> None:
    """Every type of value, every replacement, requests without drafts at each end, and more than 128 drafts."""
    import torch

    for drafted in BATCHES:
        random = torch.Generator().manual_seed(len(drafted))
        floats = torch.rand(len(drafted), generator=random)
        floats[-1] = 0.0
        whole = torch.randint(1, 262144, (len(drafted),), generator=random)
        for values in (floats, floats * 0, floats.double(), whole.int(), whole):
            for replaced in ((0, 0), (0, 1), (values[0].item(), 3), (-1, 5)):
                found = expanded(values, drafted, *replaced)
                wanted = reference(values, drafted, *replaced)
                assert torch.equal(found, wanted), f"{drafted} {values} {replaced}: {found}"


def check_sampler() -> None:
    """The sampler divides by each request's temperature, and passes on its top_k and top_p."""
    import torch
    from vllm.v1.sample import rejection_sampler

    class Kernel:
        """Stands in for the kernel's dispatcher: launched with a grid or called, it is what a CPU runs."""

        def __getitem__(self, grid):
            return kernel()

        def __call__(self, *args, **kwargs):
            return kernel()(*args, **kwargs)

    temperature, k, p = torch.tensor([0.7, 1.0, 0.0]), torch.tensor([64, 2048, 5]).int(), torch.tensor([0.95, 1.0, 0.5])
    ends = torch.tensor(DRAFTED, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    name = "_expand" if hasattr(rejection_sampler, "_expand") else "expand_kernel"
    logits = torch.arange(sum(DRAFTED) * 4.0).reshape(-1, 4)
    metadata = SimpleNamespace(all_greedy=False, temperature=temperature, top_k=k, top_p=p)
    passed = []
    with (
        compiled(),
        patch.object(rejection_sampler, name, Kernel()),
        patch.object(rejection_sampler, "apply_top_k_top_p", lambda *given: passed.extend(given)),
    ):
        rejection_sampler.apply_sampling_constraints(logits.clone(), ends, metadata)
    wanted = (
        logits / reference(temperature, DRAFTED, 0, 1)[:, None],
        reference(k, DRAFTED),
        reference(p, DRAFTED),
    )
    for found, right in zip(passed, wanted, strict=True):
        assert torch.equal(found, right), f"the sampler has {found} in place of {right}"


def used(seen) -> str:
    """Return what top_k and top_p that nobody wrote lead to."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    k, p = seen["top_k"], seen["top_p"]
    try:
        apply_top_k_top_p_pytorch(torch.rand(len(k), 4), k, p)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "no error"
