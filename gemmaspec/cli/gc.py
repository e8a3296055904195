"""`gemmaspec gc`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmaspec.deploy.views.gc import Garbage


def gc(
    runtimes: Annotated[bool, typer.Option("--runtimes", help="Unused runtimes.")] = False,
    known_good: Annotated[
        bool, typer.Option("--known-good", help="Known good stacks, except the latest of each profile.")
    ] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Logs of earlier starts and failed starts.")] = False,
    prompts: Annotated[bool, typer.Option("--data-sets", help="Data sets fetched for --prompts.")] = False,
    volumes: Annotated[bool, typer.Option("--volumes", help="Docker volumes of removed stacks.")] = False,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Minimum age of all but runtimes and volumes.")
    ] = 7,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be freed; remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: options.Json = False,
) -> None:
    """Free disk space. Lists what it would remove and asks first.

    Without options it covers runtimes, known good stacks, logs and prompts. Volumes hold downloaded models and are
    removed only with --volumes, on the machines of fleet.yaml too. Nothing that runs is touched.
    """
    from gemmaspec.deploy.views import gc as use_case

    named = {"runtime": runtimes, "known-good": known_good, "log": logs, "prompts": prompts, "volume": volumes}
    kinds = [kind for kind in use_case.KINDS if named[kind]] or use_case.BY_DEFAULT
    found = list(use_case.garbage(kinds, days=older_than, note=output.progress))
    if not json:
        _show(found)
    if found and not dry_run and (yes or _agreed(json)):
        for one in found:
            use_case.free(one)
        output.progress(f"freed {_size(sum(one.bytes or 0 for one in found))}")
    if json:
        rows = [{key: value for key, value in vars(one).items() if key != "node"} for one in found]
        output.json_data({"ok": True, "freed": bool(found) and not dry_run, "garbage": rows})


def _show(found: Sequence[Garbage]) -> None:
    from gemmaspec.cli.text import table

    if not found:
        output.progress("nothing to free")
        return
    columns = (table.Column("KIND"), table.Column("SIZE"), table.Column("WHAT"), table.Column("WHY", 1, wraps=True))
    table.show(columns, [(one.kind, _size(one.bytes), _what(one), one.why) for one in found])
    output.data(f"{_size(sum(one.bytes or 0 for one in found))} in all")


def _what(one: Garbage) -> str:
    return f"{one.name} on {one.host}" if one.host else one.name


def _agreed(json: bool) -> bool:
    if json or not sys.stdin.isatty():
        raise UsageError("gc needs a terminal to ask for confirmation", hint="gemmaspec gc --yes")
    return typer.confirm("Remove these?", err=True)


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
