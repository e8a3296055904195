"""`gemmaspec gc`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.core.errors import UsageError
from gemmaspec.core.sentences import readable_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmaspec.serve.gc import Garbage


def gc(
    volumes: Annotated[bool, options.option("--volumes")] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Free disk space. Lists what it would remove and asks first.

    Unused runtimes, and what is older than a week: known good stacks except the latest of each profile, logs of earlier
    starts, fetched prompts. With --volumes also on the machines of fleet.yaml. Nothing that runs is touched.
    """
    from gemmaspec.serve import gc as use_case

    pieces = list(use_case.garbage(volumes=volumes, note=output.progress))
    if not json:
        _show(pieces)
    if pieces and not dry_run and (yes or _agreed(json)):
        for piece in pieces:
            use_case.free(piece)
        output.progress(f"freed {_sum(pieces)}")
    if json:
        rows = [{key: value for key, value in vars(piece).items() if key != "node"} for piece in pieces]
        output.json_data({"ok": True, "freed": bool(pieces) and not dry_run, "garbage": rows})


def _show(pieces: Sequence[Garbage]) -> None:
    from gemmaspec.cli.text import table

    if not pieces:
        output.progress("nothing to free")
        return
    columns = (table.Column("KIND"), table.Column("SIZE"), table.Column("WHAT"), table.Column("WHY", 1, wraps=True))
    sizes = ["?" if piece.bytes is None else readable_size(piece.bytes) for piece in pieces]
    rows = [(piece.kind, size, _what(piece), piece.why) for piece, size in zip(pieces, sizes, strict=True)]
    table.show(columns, rows)
    output.data(f"{_sum(pieces)} in all")


def _sum(pieces: Sequence[Garbage]) -> str:
    """Return how much space the pieces take; volumes, whose size is not known, are counted apart."""
    known = [piece.bytes for piece in pieces if piece.bytes is not None]
    unknown = len(pieces) - len(known)
    volumes = f"{unknown} volume{'s'[: unknown > 1]} of unknown size"
    if not known:
        return volumes
    return f"{readable_size(sum(known))}{f' and {volumes}' if unknown else ''}"


def _what(piece: Garbage) -> str:
    if piece.host:
        return f"{piece.name} on {piece.host}"
    return piece.name


def _agreed(json: bool) -> bool:
    if json or not sys.stdin.isatty():
        raise UsageError("gc needs a terminal to ask for confirmation", hint="gemmaspec gc --yes")
    return typer.confirm("Remove these?", err=True)
