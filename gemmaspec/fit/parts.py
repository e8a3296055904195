"""The parts of one bar of memory."""

from __future__ import annotations

from gemmaspec.fit.memory_plan import MemoryPlan


def parts(plan: MemoryPlan) -> list[tuple[str, int]]:
    """Return what fills the memory of one GPU, in bytes, and what stays free; parts of no size are left out.

    Together they are more than the memory where the profile does not fit.
    """
    gpus = plan.flags.tensor_parallel
    graphs = sum(one.nbytes for one in plan.overheads if one.name == "CUDA graphs")
    found = [
        ("weights", plan.target.total // gpus),
        ("draft", plan.draft.total // gpus if plan.draft else 0),
        ("cache", max(0, plan.available)),
        ("graphs", graphs),
        ("other", sum(one.nbytes for one in plan.overheads) - graphs),
    ]
    free = plan.device.memory - sum(nbytes for _, nbytes in found)
    return [(name, nbytes) for name, nbytes in (*found, ("free", free)) if nbytes > 0]
