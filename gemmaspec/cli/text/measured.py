"""What `gemmaspec patch measure` prints."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.cli.text import page
from gemmaspec.core.patching.spot import Case
from gemmaspec.serve.spot import Outcome, Planned, line_of


def planned(plan: Planned, *, as_json: bool) -> None:
    """Print what would be measured."""
    names = [patch.id for patch in plan.patches]
    document = {"ok": True, "patches": names, "left_out": plan.left_out, "most_s": plan.most_s, "job": plan.job}
    title = f"{plan.loaded.profile.name}: would measure {', '.join(names) or 'nothing'} with vLLM {plan.vllm}"
    page.answer(document, page.lines(title, _planned_rows(plan), names=page.NAMES), as_json=as_json)


def _planned_rows(plan: Planned) -> Iterator[page.Row]:
    if plan.patches:
        loads = ", ".join(f"{requests} x {context:,}" for requests, context in plan.job["loads"])
        yield "loads", f"{loads} tokens"
        yield "time", f"at most {plan.most_s // 60} min"
    yield from page.named("left out", (f"{name}: {why}" for name, why in plan.left_out.items()))


def measured(outcome: Outcome, *, as_json: bool) -> None:
    """Print what was measured, and what follows for the next start."""
    results = []
    for one in outcome.found:
        found = {"taken": one.verdict.taken, "because": one.verdict.because}
        results.append({"patch": one.kept.key.patch, **found, **one.kept.model_dump(mode="json", by_alias=True)})
    document = {"ok": True, "place": outcome.place, "results": results, "files": outcome.files}
    page.answer(document, _lines(outcome), as_json=as_json)


def _lines(outcome: Outcome) -> Iterator[str]:
    loaded = outcome.planned.loaded
    if not outcome.found:
        left_out = (f"{patch}: {why}" for patch, why in outcome.planned.left_out.items())
        title = f"{loaded.profile.name}: no patch for speed to measure"
        yield from page.lines(title, page.named("left out", left_out), names=page.NAMES)
        return
    yield f"measured on {outcome.place}"
    for one in outcome.found:
        yield f"{one.kept.key.patch}: {line_of(one.verdict)}"
        for case in one.kept.measurement.cases:
            yield f"  {_case(case)}"
    yield f"its next start decides by this: gemmaspec up {loaded.typed} --dry-run"


def _case(case: Case) -> str:
    released, patched = case.took
    if case.part == "step":
        whole = "a step"
    else:
        whole = "a prompt"
    return f"{case.name}: {released:.3f} -> {patched:.3f} ms, {case.times} times {whole}"
