"""What an estimate does not know, in a few words for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gemmaspec.check.fit.memory_plan import MemoryPlan


def unknown(plan: MemoryPlan, speed: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what was assumed, because neither the checkpoints nor a measurement say it.

    `speed` is what `predict --json` says of the same server; None where there is no prediction.
    """
    yield from unknown_speed(speed)
    models = [("target", plan.models.target), ("draft", plan.models.draft)]
    shaped = [role for role, model in models if model and model.source == "shipped"]
    if shaped:
        yield f"the headers of {' and '.join(shaped)} (shipped shapes are used)"
    if plan.demand.tensor_parallel > 1:
        yield "the memory that NCCL takes on each GPU"
    if len(plan.demand.stages) > 1:
        yield "what a stage needs besides weights and cache (computed as for a whole model)"
    if plan.demand.nodes > 1:
        yield "how long a step waits for the other machine"


def unknown_speed(speed: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what a prediction assumed, from its `--json` document."""
    if speed is None:
        return
    drafting = [row for row in speed["rows"] if row["k"]]
    if any(row["acceptance_measured"] == 0 for row in drafting):
        first = next(row["acceptance"][0] for row in drafting if row["acceptance_measured"] == 0)
        yield f"what your prompts accept ({first:.2f} a drafted token is assumed)"
    elif any(row["acceptance_measured"] < row["k"] for row in drafting):
        yield "how often the last drafted positions are accepted (extrapolated)"
    for doubt in speed["doubts"]:
        if not doubt.startswith("acceptance was not measured"):
            yield doubt
    if speed["basis"] == "roofline":
        yield "how long its steps take (never measured here; computed from the memory's bandwidth)"
    elif speed["basis"] == "bound":
        yield "the speed: no server like it was measured"
