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
    volumes: Annotated[
        bool, typer.Option("--volumes", help="Docker volumes of servers that do not run too: caches and models.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Free disk space. Lists what it would remove and asks first.

    Unused runtimes, and what is older than a week: known good stacks except the latest of each profile, logs of earlier
    starts, fetched prompts. With --volumes also on the machines of fleet.yaml. Nothing that runs is touched.
    """
    from gemmaspec.deploy.views import gc as use_case

    found = list(use_case.garbage(volumes=volumes, note=output.progress))
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
