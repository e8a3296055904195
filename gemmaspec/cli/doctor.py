"""`gemmaspec doctor`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from gemmaspec.check.doctor.result import State
from gemmaspec.cli import options, output
from gemmaspec.cli.text import page, table
from gemmaspec.core.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.check.doctor.result import CheckResult
    from gemmaspec.serve.doctor import Examined

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

    examined = use_case(profile, engine=options.engine_name(engine), overrides=set_ or ())
    document = {
        "ok": examined.ok,
        "profile": examined.profile,
        "engine": examined.engine,
        "rows": examined.rows,
        "settings": list(settings()),
    }
    page.answer(document, _lines(examined, every=every), as_json=json)
    raise typer.Exit(0 if examined.ok else 4)


def _hosts(profile: str | None, overrides: Sequence[str], *, every: bool, as_json: bool) -> None:
    from gemmaspec.serve.doctor_hosts import doctor_hosts

    seen = doctor_hosts(profile, overrides=overrides)
    document = {"ok": seen.ok, "profile": profile, "file": seen.file, "rows": seen.rows, "fleet": seen.lines}
    fleet = ("", f"# {seen.file}, as the machines describe it:", *seen.lines)
    page.answer(document, chain(_row_lines(seen.rows, every=every), fleet), as_json=as_json)
    raise typer.Exit(0 if seen.ok else 4)


def _lines(examined: Examined, *, every: bool) -> Iterator[str]:
    yield f"engine {examined.why}"
    yield from _row_lines(examined.rows, every=every)
    if every:
        yield from _setting_lines()


def _setting_lines() -> Iterator[str]:
    """Yield a table of the folders, and one of the variables that are set."""
    from gemmaspec.look.settings import settings

    known = list(settings())
    for kind in ("folder", "variable"):
        of_kind = [its for its in known if its.kind == kind]
        rows = [(its.name, its.value, its.meaning) for its in of_kind if its.value]
        if rows:
            columns = (table.Column(kind.upper()), table.Column("VALUE"), table.Column("MEANING", rank=1, wraps=True))
            yield ""
            yield from table.lines(columns, rows, width=output.width_of(sys.stdout))


def _row_lines(rows: Sequence[CheckResult], *, every: bool) -> Iterator[str]:
    """Yield the rows that fail or warn, and how many others there are; with `every`, all of them."""
    shown = [row for row in rows if every or row.state in _NEEDS_READING]
    width = max((len(row.name) for row in shown), default=0)
    for row in shown:
        yield from page.hanging(f"{page.judged(row.state, 7)}  {row.name:<{width}}  ", row.message, shown=9 + width + 2)
        if row.fix and row.state in _NEEDS_READING:
            yield f"{'':9}{'':<{width}}  try: {row.fix}"
    if not every:
        yield f"{_counted(rows)} (all rows: --all)"


def _counted(rows: Sequence[CheckResult]) -> str:
    """Return how many rows have each state, those in order first."""
    numbers: Counter[str] = Counter(row.state for row in rows)
    return ", ".join(f"{numbers[state]} {state}" for state in get_args(State) if numbers[state])
