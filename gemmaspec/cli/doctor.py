"""`gemmaspec doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.deploy.views.doctor import Examined
    from gemmaspec.doctor.result import CheckResult

_COLOURS: Final = {"ok": 32, "warning": 33, "failed": 31, "skipped": 2}

OptionalProfile = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROFILE]",
        help="Profile to check; without it, only the machine is checked.",
        autocompletion=options.complete_profile,
        show_default=False,
    ),
]


def doctor(
    profile: OptionalProfile = None,
    engine: options.Engine = None,
    set_: options.Set = None,
    hosts: Annotated[
        bool,
        typer.Option(
            "--fleet", help="Check the machines of fleet.yaml, and print the file as they describe themselves."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Check whether a profile can start here, and how to fix what prevents it. Starts and changes nothing.

    It ends with the folders and variables in use, without values of secrets.

    Exit code 4 if it cannot start. With --fleet and a PROFILE, a container of its image runs on each machine for a
    moment, because only it can see the machine's network, RDMA devices, models and disk.
    """
    if hosts:
        if engine:
            raise UsageError(
                "--engine cannot be used with --fleet, because it checks this machine only",
                hint="gemmaspec doctor --fleet",
            )
        _hosts(profile, set_ or (), as_json=json)
        return
    from gemmaspec.deploy.views.doctor import doctor as use_case
    from gemmaspec.deploy.views.pods import settings

    found = use_case(profile, engine=options.engine_name(engine), overrides=set_ or ())
    if json:
        rows = [asdict(row) for row in found.rows]
        facts = {"profile": found.profile, "engine": found.engine, "rows": rows, "settings": list(settings())}
        output.json_data({"ok": found.ok, **facts})
    else:
        _show(found)
    raise typer.Exit(0 if found.ok else 4)


def _hosts(profile: str | None, overrides: Sequence[str], *, as_json: bool) -> None:
    from gemmaspec.deploy.views.doctor_hosts import doctor_hosts

    found = doctor_hosts(profile, overrides=overrides)
    if as_json:
        rows = [asdict(row) for row in found.rows]
        output.json_data({"ok": found.ok, "profile": profile, "file": found.file, "rows": rows, "fleet": found.lines})
    else:
        _table(found.rows)
        output.told(f"\n# {found.file}, as the machines describe it:")
        for line in found.lines:
            output.told(line)
    raise typer.Exit(0 if found.ok else 4)


def _show(found: Examined) -> None:
    output.told(f"engine {found.why}")
    _table(found.rows)
    _settings()


def _settings() -> None:
    from gemmaspec.cli.text import table
    from gemmaspec.deploy.views.pods import settings

    rest = (table.Column("VALUE"), table.Column("MEANING", rank=1, wraps=True))
    known = list(settings())
    for kind in ("folder", "variable"):
        rows = [(one.name, one.value, one.meaning) for one in known if one.kind == kind and one.value]
        if rows:
            output.told("")
            table.show((table.Column(kind.upper()), *rest), rows)


def _table(rows: Sequence[CheckResult]) -> None:
    width = max(len(row.name) for row in rows)
    for row in rows:
        state = output.coloured(f"{row.state:<7}", _COLOURS[row.state])
        output.told(f"{state}  {row.name:<{width}}  {row.message}")
        if row.fix and row.state in ("failed", "warning"):
            output.told(f"{'':9}{'':<{width}}  try: {row.fix}")
