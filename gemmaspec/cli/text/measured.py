"""What `gemmaspec patch measure` prints."""

from __future__ import annotations

from gemmaspec.cli import output
from gemmaspec.core.patching.spot import Case
from gemmaspec.serve.spot import Outcome, Planned, line_of


def planned(plan: Planned, *, as_json: bool) -> None:
    """Print what would be measured."""
    names = [patch.id for patch in plan.patches]
    if as_json:
        left_out = dict(plan.left_out)
        output.json_data({"ok": True, "patches": names, "left_out": left_out, "most_s": plan.most_s, "job": plan.job})
        return
    output.told(f"{plan.loaded.profile.name}: would measure {', '.join(names) or 'nothing'} with vLLM {plan.vllm}")
    if names:
        loads = ", ".join(f"{requests} x {context:,}" for requests, context in plan.job["loads"])
        output.told(f"loads     {loads} tokens", f"time      at most {plan.most_s // 60} min")
    for name, why in plan.left_out.items():
        output.told(f"left out  {name}: {why}")


def measured(outcome: Outcome, *, as_json: bool) -> None:
    """Print what was measured, and what follows for the next start."""
    if as_json:
        rows = []
        for one in outcome.found:
            found = {"taken": one.verdict.taken, "because": one.verdict.because}
            rows.append({"patch": one.kept.key.patch, **found, **one.kept.model_dump(mode="json", by_alias=True)})
        files = [str(file) for file in outcome.files]
        output.json_data({"ok": True, "place": outcome.place, "results": rows, "files": files})
        return
    name = outcome.planned.loaded.profile.name
    if not outcome.found:
        output.told(f"{name}: no patch for speed to measure")
        for patch, why in outcome.planned.left_out.items():
            output.told(f"left out  {patch}: {why}")
        return
    output.told(f"measured on {outcome.place}")
    for one in outcome.found:
        output.told(f"{one.kept.key.patch}: {line_of(one.verdict)}")
        for case in one.kept.measurement.cases:
            output.told(f"  {_case(case)}")
    output.told(f"its next start decides by this: gemmaspec up {outcome.planned.loaded.typed} --dry-run")


def _case(case: Case) -> str:
    released, patched = case.took
    whole = "step" if case.part == "step" else "prompt"
    return f"{case.name}: {released:.3f} -> {patched:.3f} ms, {case.times} times a {whole}"
