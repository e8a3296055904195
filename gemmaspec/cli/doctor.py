"""`gemmaspec doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from gemmaspec.deploy.doctor import Examined
    from gemmaspec.doctor.result import CheckResult

_COLOURS: Final = {"ok": "32", "warning": "33", "failed": "31", "skipped": "2"}

OptionalProfile = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROFILE]",
        help="Profile to check; without it, only the machine is checked.",
        autocompletion=options.complete_profile,
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor")(doctor)


def doctor(
    profile: OptionalProfile = None,
    engine: options.Engine = None,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Check whether a profile can start here, and how to fix what prevents it. Starts and changes nothing.

    Exit code 4 if it cannot start.
    """
    from gemmaspec.deploy.doctor import doctor as use_case

    found = use_case(profile, engine=options.engine_name(engine), overrides=set_ or ())
    if json:
        rows = [_as_json(row) for row in found.rows]
        output.json_data({"ok": found.ok, "profile": found.profile, "engine": found.engine, "rows": rows})
    else:
        _show(found)
    raise typer.Exit(0 if found.ok else 4)


def _show(found: Examined) -> None:
    output.told(f"engine {found.why}")
    width = max(len(row.name) for row in found.rows)
    for row in found.rows:
        output.told(f"{_state(row.state)}  {row.name:<{width}}  {row.message}")
        if row.fix and row.state in ("failed", "warning"):
            output.told(f"{'':9}{'':<{width}}  try: {row.fix}")


def _as_json(row: CheckResult) -> dict[str, str | None]:
    return {"name": row.name, "state": row.state, "says": row.message, "do": row.fix}


def _state(state: str) -> str:
    text = f"{state:<7}"
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if output.wants_colour(sys.stdout) else text
