"""From a step on one GPU to the same step on several GPUs of one machine: fewer bytes on each, and sums between them.

    T_n = T_1 - (bytes_1 - bytes_n) / (share x bandwidth) + sums t_sum

`bytes` are what a step reads on one GPU, `share` the part of its bandwidth that one GPU reached with the same kernels,
and `sums` the all-reduces: two in each layer of the target, and of the draft in each of its passes (RowParallelLinear
in vllm/model_executor/layers/linear.py, every release). How long a sum takes follows from servers on one and on two
GPUs (measurements/links.jsonl), for one kind of link. No other link has a figure: it is in no data sheet, and over
PCIe without peer access a sum takes several times as long.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from typing import Final

from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.check.fit.roofline import step_bytes
from gemmaspec.check.predict.predict import Predicted
from gemmaspec.core import data
from gemmaspec.core.releases.drafting import BLOCKS

_SUMS: Final = 2
"""All-reduces of one layer."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """What was measured of so many GPUs of a family with one link."""

    family: str
    gpus: int
    link: str
    share: float
    """Share of the bandwidth that a step of one GPU reached."""
    us_per_sum: float
    """Microseconds of one all-reduce, with what it keeps from running."""
    prompts: float
    """How many times as fast prompts are read."""
    deviation: float
    """Relative standard deviation of a step, from the cells that were left out in turn."""
    source: str


@functools.cache
def known() -> tuple[Between, ...]:
    """Return what was measured: the rows of measurements/links.jsonl."""
    lines = (data.MEASUREMENTS / "links.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Between(**json.loads(line)) for line in lines)


def between(family: str | None, gpus: int) -> Between | None:
    """Return what was measured of so many GPUs of a family; None where nothing was."""
    return next((row for row in known() if (row.family, row.gpus) == (family, gpus)), None)


def on_one_gpu(plan: MemoryPlan) -> MemoryPlan:
    """Return the memory of the same server on one GPU."""
    whole = plan.in_one_stage
    return replace(whole, demand=replace(whole.demand, tensor_parallel=1))


def saved_bytes(one: MemoryPlan, several: MemoryPlan, *, k: int, concurrency: int, context: int) -> int:
    """Return how many bytes less each GPU reads in a step that drafts k tokens for each request."""
    return _read(one, k, concurrency, context) - _read(several, k, concurrency, context)


def sums_of(plan: MemoryPlan, k: int) -> int:
    """Return the all-reduces of a step: the target's pass, and each pass of the draft."""
    layers = len(plan.models.target.text.layers)
    if plan.models.draft and k:
        layers += _passes(plan, k) * len(plan.models.draft.text.layers)
    return _SUMS * layers


def _read(plan: MemoryPlan, k: int, concurrency: int, context: int) -> int:
    step = step_bytes(plan, context=context, concurrency=concurrency, tokens=k + 1)
    return sum(step.reads(_passes(plan, k)))


def _passes(plan: MemoryPlan, k: int) -> int:
    if not k or plan.draft is None:
        return 0
    if plan.demand.method in BLOCKS:
        return 1
    return k


def on_several(row: Predicted, one: MemoryPlan, several: MemoryPlan, link: Between) -> Predicted:
    """Return a cell of one GPU as it is on several."""
    fewer = saved_bytes(one, several, k=row.k, concurrency=row.concurrency, context=row.context)
    assert one.device.bandwidth
    saved = fewer / (link.share * one.device.bandwidth)
    added = sums_of(several, row.k) * link.us_per_sum / 1e6
    seconds = max(row.step.seconds - saved + added, row.step.seconds / link.gpus)
    deviation = (row.step.deviation**2 + link.deviation**2) ** 0.5
    step = replace(row.step, seconds=seconds, deviation=deviation)
    waits, unsure = row.prompts
    return replace(row, step=step, prompts=(waits / link.prompts, unsure / link.prompts), measured=False)
