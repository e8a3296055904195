"""What a step sends between the machines of one server, and the time that takes at least.

Tensor parallelism adds up the partial results of all GPUs twice in each layer: after attention and after the MLP
(RowParallelLinear in vllm/model_executor/layers/linear.py, every release). Each sum covers hidden_size activations for
every token of the pass. Over n machines, each has to send 2 (n - 1) / n of that to the others, as in a ring. The bytes
are a bound, because embeddings, logits and what the GPUs of one machine send to each other come on top.

The bytes are few. What costs is that each sum waits for the network, and nobody has measured how long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.core.releases.drafting import BLOCKS

_ACTIVATION: Final = 2
"""Bytes of an activation: bfloat16 or float16."""
_SUMS: Final = 2
"""Sums of one layer."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One step of a server on several machines. Times are in seconds."""

    nodes: int
    gpus_per_node: int
    sums: int
    """Sums over the network in one step, the draft's passes included."""
    sent: int
    """Bytes that each machine sends in one step, at least."""
    rate: float | None
    """Bytes per second of the link; None if unknown."""

    @property
    def sending(self) -> float | None:
        """Time of the bytes at the link's rate; None if that is unknown."""
        if self.rate is None:
            return None
        return self.sent / self.rate


def link_of(plan: MemoryPlan, *, concurrency: int = 1) -> Link | None:
    """Return what a step of `concurrency` requests sends; None for a server on one machine, or in stages."""
    nodes, demand = plan.demand.nodes, plan.demand
    if nodes < 2 or len(demand.stages) > 1:
        return None
    passes = [(plan.models.target, concurrency * (demand.draft_tokens + 1))]
    if plan.models.draft:
        if demand.method in BLOCKS:
            number, each = 1, demand.draft_tokens + 1
        else:
            number, each = demand.draft_tokens, 1
        passes += [(plan.models.draft, concurrency * each)] * number
    sums = added = 0
    for model, tokens in passes:
        sums_of_pass = _SUMS * len(model.text.layers)
        sums += sums_of_pass
        added += sums_of_pass * model.text.hidden_size * tokens * _ACTIVATION
    return Link(
        nodes=nodes,
        gpus_per_node=max(1, demand.tensor_parallel // nodes),
        sums=sums,
        sent=added * 2 * (nodes - 1) // nodes,
        rate=plan.device.link,
    )
