"""What `gemmaspec tune` prints."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.bench.cells import Arm
from gemmaspec.cli import output
from gemmaspec.cli.text import table
from gemmaspec.deploy.speed.tune import Outcome
from gemmaspec.deploy.speed.tune_field import Compared
from gemmaspec.tune.next_arm import all_arms, minutes
from gemmaspec.tune.tried import Settings, Tried, worth


def dry_run(compared: Compared, settings: Settings, *, as_json: bool) -> None:
    """Print what would be tried."""
    field = compared.field
    if as_json:
        arms = [{"key": one.key, "profile": one.profile, "method": one.method, "k": one.k} for one in field.arms]
        knobs = [{"profile": one.profile, "try": one.knob} for one in field.knobs]
        output.json_data(
            {"ok": True, "arms": arms, "knobs": knobs, "left_out": dict(field.left_out), "settings": settings.as_json()}
        )
        return
    loads = ", ".join(map(str, compared.loads))
    output.told(f"{compared.base.profile.name}: would try {len(field.arms)} arms with {loads} requests at once")
    columns = (table.Column("arm"), table.Column("method"), table.Column("k"), table.Column("set for it", wraps=True))
    rows = [(one.profile, one.method, str(one.k) if one.k else "-", " ".join(one.overrides)) for one in field.arms]
    table.show(columns, rows)
    if field.tables:
        output.told("on the fastest  k_by_requests, if the first round says that it gains")
    for knob in dict.fromkeys(one.knob for one in field.knobs):
        output.told(f"on the fastest  {knob}")
    for name, why in field.left_out.items():
        output.told(f"left out        {name}: {why}")


def outcome(found: Outcome, *, as_json: bool) -> None:
    """Print what was tried, what it gave, and what was chosen and why."""
    if as_json:
        output.json_data({"ok": not found.interrupted, **found.document})
        return
    loads = found.tried.loads
    output.data(f"{found.compared.base.profile.name}: {len(found.tried.cells)} cells measured")
    columns = (
        table.Column("profile"),
        table.Column("method"),
        table.Column("k"),
        *(table.Column(f"{load} at once") for load in loads),
        table.Column("times"),
        table.Column("round", rank=1),
        table.Column("", wraps=True),
    )
    table.show(columns, list(_rows(found)))
    if found.choice is None:
        return
    for one in found.choice.loads:
        k = f"k={one.k}" if one.k else "no speculation"
        fastest = one.fastest.at(one.concurrency)
        other = f"; {one.fastest}: {one.fastest_times:.2f}" if fastest != one.k else ""
        output.told(
            f"best at {one.concurrency:<5}{k}, {one.tokens_per_second:,.1f} tok/s, {one.times:.2f} times{other}"
        )
    output.told(f"chosen       {found.choice.arm}")
    output.told(f"why          {found.choice.why}")
    output.told(f"ended        {found.ended}")
    if found.file:
        output.told(f"written to   {found.file}")
        output.told(f"next         gemmaspec up {found.file.stem if found.in_profiles else found.file}")


def interrupted(found: Outcome) -> str:
    """Return what an interruption leaves."""
    kept = found.tried.kept
    if found.choice is None:
        return f"interrupted before anything was compared; {kept}"
    return f"interrupted after {minutes(found.document['spent_s'])}; {kept}, and the best of them is {found.choice.arm}"


def _rows(found: Outcome) -> Iterator[tuple[str, ...]]:
    arms = all_arms(found.tried, found.compared.field)
    for arm in arms:
        yield _row(found, found.tried, arm, arms[0])


def _row(found: Outcome, tried: Tried, arm: Arm, alone: Arm) -> tuple[str, ...]:
    own = worth(tried, arm, alone)
    rung = own.rung if own else 0
    rates = [tried.rate(arm, rung, load) for load in tried.loads]
    remarks = [
        *([arm.knob] if arm.knob else []),
        *(["chosen"] if found.choice and found.choice.arm == arm else []),
        *([tried.failed[arm.key]] if arm.key in tried.failed else []),
        *(["not tried: " + tried.ruled_out[arm.key]] if arm.key in tried.ruled_out else []),
    ]
    if own is None and not remarks and not any(rates):
        remarks = ["not tried: the budget ended" if not found.interrupted else "not tried"]
    return (
        arm.profile,
        arm.method,
        str(arm.k) if arm.k else "-",
        *(f"{rate:,.1f}" if rate else "-" for rate in rates),
        f"{own.score:.2f}" if own else "-",
        str(rung + 1) if own else "-",
        "; ".join(remarks),
    )
