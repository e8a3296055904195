"""`gemmaspec compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Result of bench: its folder or its result.json.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Result to compare with A.")],
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            help="Change to ignore as noise, such as 5% or 0.05. [default: 2%, or the spread of a cell's rounds]",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Compare two results of bench: what differs between the runs, and how much faster or slower B is.

    Exit code 1 if a cell of B is slower than in A by more than noise, or if B's run ended before it had measured all of
    A's cells.
    """
    from gemmaspec.bench.compare import compare as compared
    from gemmaspec.bench.compare import comparison_json
    from gemmaspec.bench.result import read_result
    from gemmaspec.cli.text import compare as text

    found = compared(read_result(a), read_result(b), tolerance=_share(tolerance))
    if json:
        output.json_data({"ok": not (found.slower or found.lost), **comparison_json(found)})
    else:
        for line in text.lines(found, str(a), str(b), width=output.width_of(sys.stdout)):
            output.told(line)
    raise typer.Exit(1 if found.slower or found.lost else 0)


def _share(text: str | None) -> float | None:
    """Return a share of 1: 5%, 5 and 0.05 are the same."""
    if text is None:
        return None
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise UsageError(f"--tolerance must be a share such as 5% or 0.05, not {text!r}")
    return value / 100 if text.strip().endswith("%") or value >= 1 else value
