"""What `gemmaspec tune` prints."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.cli import output
from gemmaspec.cli.text import table
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.servers.tune import TuneOutcome
from gemmaspec.measure.servers.tune_field import Compared
from gemmaspec.measure.tune.next_arm import all_arms, minutes
from gemmaspec.measure.tune.trials import Tried, TuneRequest, worth
from gemmaspec.run.kept.attention import graphs_ahead


def dry_run(compared: Compared, decided: TuneRequest, *, as_json: bool) -> None:
    """Print what would be tried."""
    field = compared.field
    if as_json:
        arms = [{"key": arm.key, "profile": arm.profile, "method": arm.method, "k": arm.k} for arm in field.arms]
        knobs = [{"profile": knob.profile, "try": knob.knob} for knob in field.knobs]
        more = {"left_out": dict(field.left_out), "settings": decided.settings()}
        output.json_data({"ok": True, "arms": arms, "knobs": knobs, **more})
        return
    loads = ", ".join(map(str, compared.loads)) + " requests at once"
    output.told(f"{compared.base.profile.name}: would try {len(field.arms)} configurations with {loads}")
    columns = (*map(table.Column, ("profile", "method", "k")), table.Column("set for it", wraps=True))
    rows = [(arm.profile, arm.method, str(arm.k) if arm.k else "-", " ".join(arm.overrides)) for arm in field.arms]
    table.show(columns, rows)
    if field.tables:
        output.told("on the fastest  k_by_requests, if the first round shows a gain")
    for knob in dict.fromkeys(knob.knob for knob in field.knobs):
        output.told(f"on the fastest  {knob}")
    for name, why in field.left_out.items():
        output.told(f"left out        {name}: {why}")
    for lost in graphs_ahead(compared.base.profile, elsewhere=False):
        output.told(f"note            {lost}")


def outcome(outcome: TuneOutcome, *, as_json: bool) -> None:
    """Print what was tried, what it gave, and what was chosen and why."""
    if as_json:
        output.json_data({"ok": not outcome.interrupted, **outcome.document})
        return
    loads = outcome.tried.loads
    cells = len(outcome.tried.cells)
    output.data(f"{outcome.compared.base.profile.name}: {cells} {'cell' if cells == 1 else 'cells'} measured")
    columns = (
        *map(table.Column, ("profile", "method", "k", *(f"{load} at once" for load in loads))),
        table.Column("times"),
        table.Column("round", rank=1),
        table.Column("", wraps=True),
    )
    table.show(columns, list(_rows(outcome)))
    if outcome.choice is None:
        return
    for load in outcome.choice.loads:
        k = f"k={load.k}" if load.k else "no speculation"
        fastest = load.fastest.at(load.concurrency)
        if fastest != load.k:
            other = f"; {load.fastest}: {load.fastest_times:.2f}"
        else:
            other = ""
        output.told(
            f"best at {load.concurrency:<5}{k}, {load.tokens_per_second:,.1f} tok/s, {load.times:.2f} times{other}"
        )
    output.told(f"chosen       {outcome.choice.arm}")
    output.told(f"why          {outcome.choice.why}")
    output.told(f"ended        {outcome.ended}")
    if outcome.file:
        output.told(f"written to   {outcome.file}")
        output.told(f"next         gemmaspec up {outcome.file.stem if outcome.in_profiles else outcome.file}")


def interrupted(tuned: TuneOutcome) -> str:
    """Return what an interruption leaves."""
    kept = tuned.tried.kept
    if tuned.choice is None:
        return f"interrupted before anything was compared; {kept}"
    return f"interrupted after {minutes(tuned.document['spent_s'])}; {kept}, and the best of them is {tuned.choice.arm}"


def _rows(outcome: TuneOutcome) -> Iterator[tuple[str, ...]]:
    arms = all_arms(outcome.tried, outcome.compared.field)
    for arm in arms:
        yield _row(outcome, outcome.tried, arm, arms[0])


def _row(outcome: TuneOutcome, tried: Tried, arm: Arm, alone: Arm) -> tuple[str, ...]:
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
    arm_cells = (arm.profile, arm.method, str(arm.k) if arm.k else "-")
    rate_cells = [f"{rate:,.1f}" if rate else "-" for rate in rates]
    if rated:
        score, stage = (f"{rated.score:.2f}", str(rung + 1))
    else:
        score, stage = ("-", "-")
    return (*arm_cells, *rate_cells, score, stage, "; ".join(remarks))
