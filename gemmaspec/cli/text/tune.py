"""What `gemmaspec tune` prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Final

from gemmaspec.cli import output
from gemmaspec.cli.text import page, table
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.servers.tune import TuneOutcome
from gemmaspec.measure.servers.tune_field import Compared
from gemmaspec.measure.tune.choose import TuneChoice
from gemmaspec.measure.tune.next_arm import all_arms, minutes
from gemmaspec.measure.tune.trials import TuneRequest, worth
from gemmaspec.run.kept.attention import graphs_ahead

_NAMES: Final = 11
"""Letters of the column of names below what was tried."""


def dry_run(compared: Compared, decided: TuneRequest, *, as_json: bool) -> None:
    """Print what would be tried."""
    field = compared.field
    document = {
        "ok": True,
        "arms": [{"key": arm.key, "profile": arm.profile, "method": arm.method, "k": arm.k} for arm in field.arms],
        "knobs": [{"profile": knob.profile, "try": knob.knob} for knob in field.knobs],
        "left_out": field.left_out,
        "settings": decided.settings(),
    }
    page.answer(document, _plan_lines(compared), as_json=as_json)


def _plan_lines(compared: Compared) -> Iterator[str]:
    arms = compared.field.arms
    loads = ", ".join(map(str, compared.loads)) + " requests at once"
    yield f"{compared.base.profile.name}: would try {len(arms)} configurations with {loads}"
    columns = (*map(table.Column, ("profile", "method", "k")), table.Column("set for it", wraps=True))
    rows = [(*_arm_cells(arm), " ".join(arm.overrides)) for arm in arms]
    yield from table.lines(columns, rows, width=output.width_of(sys.stdout), indent="  ")
    yield from page.rows_below(_plan_rows(compared), names=None)


def _plan_rows(compared: Compared) -> Iterator[page.Row]:
    field = compared.field
    knobs = list(dict.fromkeys(knob.knob for knob in field.knobs))
    if field.tables:
        knobs.insert(0, "k_by_requests, if the first round shows a gain")
    yield from page.named("on the fastest", knobs)
    yield from page.named("left out", (f"{name}: {why}" for name, why in field.left_out.items()))
    yield from page.named("note", map(str, graphs_ahead(compared.base.profile, elsewhere=False)))


def outcome(outcome: TuneOutcome, *, as_json: bool) -> None:
    """Print what was tried, what it gave, and what was chosen and why."""
    page.answer({"ok": not outcome.interrupted, **outcome.document}, _lines(outcome), as_json=as_json)


def _lines(outcome: TuneOutcome) -> Iterator[str]:
    cells = len(outcome.tried.cells)
    yield f"{outcome.compared.base.profile.name}: {cells} {'cell' if cells == 1 else 'cells'} measured"
    columns = (
        *map(table.Column, ("profile", "method", "k", *(f"{load} at once" for load in outcome.tried.loads))),
        table.Column("times"),
        table.Column("round", rank=1),
        table.Column("", wraps=True),
    )
    arms = all_arms(outcome.tried, outcome.compared.field)
    rows = [_row(outcome, arm, arms[0]) for arm in arms]
    yield from table.lines(columns, rows, width=output.width_of(sys.stdout), indent="  ")
    if outcome.choice:
        yield ""
        yield from page.rows_below(_choice_rows(outcome, outcome.choice), names=_NAMES)


def _choice_rows(outcome: TuneOutcome, choice: TuneChoice) -> Iterator[page.Row]:
    for load in choice.loads:
        k = f"k={load.k}" if load.k else "no speculation"
        other = ""
        if load.fastest.at(load.concurrency) != load.k:
            other = f"; {load.fastest}: {load.fastest_times:.2f}"
        yield f"best at {load.concurrency}", f"{k}, {load.tokens_per_second:,.1f} tok/s, {load.times:.2f} times{other}"
    yield "chosen", str(choice.arm)
    yield "why", choice.why
    yield "ended", outcome.ended
    if outcome.file:
        yield "written to", str(outcome.file)
        named = outcome.file.stem if outcome.in_profiles else str(outcome.file)
        yield "next", f"gemmaspec up {shlex.quote(named)}"


def interrupted(tuned: TuneOutcome) -> str:
    """Return what an interruption leaves."""
    kept = tuned.tried.kept
    if tuned.choice is None:
        return f"interrupted before anything was compared; {kept}"
    return f"interrupted after {minutes(tuned.document['spent_s'])}; {kept}, and the best of them is {tuned.choice.arm}"


def _row(outcome: TuneOutcome, arm: Arm, alone: Arm) -> tuple[str, ...]:
    tried = outcome.tried
    rated = worth(tried, arm, alone)
    rung = rated.rung if rated else 0
    rates = [tried.rate(arm, rung, load) for load in tried.loads]
    remarks = []
    if arm.knob:
        remarks.append(arm.knob)
    if outcome.choice and outcome.choice.arm == arm:
        remarks.append("chosen")
    if arm.key in tried.failed:
        remarks.append(tried.failed[arm.key])
    if arm.key in tried.ruled_out:
        remarks.append(f"not tried: {tried.ruled_out[arm.key]}")
    if rated is None and not remarks and not any(rates):
        remarks = ["not tried: the budget ended" if not outcome.interrupted else "not tried"]
    rate_cells = [f"{rate:,.1f}" if rate else "-" for rate in rates]
    if rated:
        score, stage = (f"{rated.score:.2f}", str(rung + 1))
    else:
        score, stage = ("-", "-")
    return (*_arm_cells(arm), *rate_cells, score, stage, "; ".join(remarks))


def _arm_cells(arm: Arm) -> tuple[str, str, str]:
    return arm.profile, arm.method, str(arm.k or "-")
