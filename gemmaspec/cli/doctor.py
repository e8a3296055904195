"""`gemmaspec doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gemmaspec.cli import options, output
from gemmaspec.core.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.check.doctor.result import CheckResult
    from gemmaspec.serve.doctor import Examined

_COLOURS: Final = {"ok": 32, "warning": 33, "failed": 31, "skipped": 2}

_NEEDS_READING: Final = ("warning", "failed")

OptionalProfile = Annotated[
    str | None, options.argument("[PROFILE]", of="doctor", autocompletion=options.complete_profile)
]


def doctor(
    profile: OptionalProfile = None,
    engine: options.Engine = None,
    set_: options.Set = None,
    hosts: Annotated[bool, options.option("--fleet")] = False,
    every: Annotated[bool, options.option("--all", of="doctor")] = False,
    json: options.Json = False,
) -> None:
    """Check whether a profile can start here, and how to fix what prevents it. Starts and changes nothing.

    Shows what fails or may fail. With --all every row, and the folders and variables in use, without values of secrets.

    Exit code 4 if it cannot start. With --fleet and a PROFILE, a container of its image runs on each machine for a
    moment, because only it can see the machine's network, RDMA devices, models and disk.
    """
    if hosts:
        if engine:
            raise UsageError(
                "--engine cannot be used with --fleet, because it checks this machine only",
                hint="gemmaspec doctor --fleet",
            )
        _hosts(profile, set_ or (), every=every, as_json=json)
        return
    from gemmaspec.look.settings import settings
    from gemmaspec.serve.doctor import doctor as use_case

    report = use_case(profile, engine=options.engine_name(engine), overrides=set_ or ())
    if json:
        rows = [asdict(row) for row in report.rows]
        facts = {"profile": report.profile, "engine": report.engine, "rows": rows, "settings": list(settings())}
        output.json_data({"ok": report.ok, **facts})
    else:
        _show(report, every=every)
    raise typer.Exit(0 if report.ok else 4)


def _hosts(profile: str | None, overrides: Sequence[str], *, every: bool, as_json: bool) -> None:
    from gemmaspec.serve.doctor_hosts import doctor_hosts

    seen = doctor_hosts(profile, overrides=overrides)
    if as_json:
        rows = [asdict(row) for row in seen.rows]
        output.json_data({"ok": seen.ok, "profile": profile, "file": seen.file, "rows": rows, "fleet": seen.lines})
    else:
        _table(seen.rows, every=every)
        output.told("", f"# {seen.file}, as the machines describe it:", *seen.lines)
    raise typer.Exit(0 if seen.ok else 4)


def _show(examined: Examined, *, every: bool) -> None:
    output.told(f"engine {examined.why}")
    _table(examined.rows, every=every)
    if every:
        _settings()


def _settings() -> None:
    from gemmaspec.cli.text import table
    from gemmaspec.look.settings import settings

    rest = (table.Column("VALUE"), table.Column("MEANING", rank=1, wraps=True))
    known = list(settings())
    for kind in ("folder", "variable"):
        rows = [(its.name, its.value, its.meaning) for its in known if its.kind == kind and its.value]
        if rows:
            output.told("")
            table.show((table.Column(kind.upper()), *rest), rows)


def _table(rows: Sequence[CheckResult], *, every: bool) -> None:
    """Print the rows that fail or warn, and how many others there are; with `every`, all of them."""
    shown = [row for row in rows if every or row.state in _NEEDS_READING]
    width = max((len(row.name) for row in shown), default=0)
    for row in shown:
        state = output.coloured(f"{row.state:<7}", _COLOURS[row.state])
        output.told(f"{state}  {row.name:<{width}}  {row.message}")
        if row.fix and row.state in _NEEDS_READING:
            output.told(f"{'':9}{'':<{width}}  try: {row.fix}")
    if not every:
        output.told(f"{_counted(rows)} (all rows: --all)")


def _counted(rows: Sequence[CheckResult]) -> str:
    """Return how many rows have each state, those in order first."""
    numbers: Counter[str] = Counter(row.state for row in rows)
    return ", ".join(f"{numbers[state]} {state}" for state in _COLOURS if numbers[state])
