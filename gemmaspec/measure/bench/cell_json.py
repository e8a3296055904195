"""A measured cell as a row of the result."""

from __future__ import annotations

import dataclasses
from typing import Any

from gemmaspec.measure.bench.cells import NONE, Task
from gemmaspec.measure.bench.samples import MeasuredCell, figures


def cell_json(task: Task, cell: MeasuredCell, *, repeated: int) -> dict[str, Any]:
    """Return one measured cell with every sample."""
    reference = {
        "before_ms": cell.reference_before * 1000,
        "after_ms": cell.reference_after * 1000,
        "moved": cell.reference_moved,
        "steady": cell.steady,
        "repeated": repeated,
    }
    what = {
        "key": task.key,
        "arm": task.arm.name,
        "method": task.arm.method if task.k else NONE,
        "k": task.k,
        "concurrency": task.cell.concurrency,
        "context": task.cell.context,
        "round": task.round,
    }
    return {
        **what,
        **figures(cell, concurrency=task.cell.concurrency, k=task.k),
        "reference": reference,
        "gpu": cell.gpu,
        "counters": [dataclasses.asdict(group) for group in cell.groups],
        "samples": [_compact(dataclasses.asdict(sample)) for sample in cell.samples],
    }


def _compact(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with moments to the microsecond, and nothing that is empty."""
    compact = {}
    for name, value in sample.items():
        if value not in ((), ""):
            compact[name] = round(value, 6) if isinstance(value, float) else value
    return compact
