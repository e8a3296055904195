"""`gemmaspec compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page
from gemmaspec.core.errors import UsageError


def compare(
    a: Annotated[Path, options.argument("A")],
    b: Annotated[Path, options.argument("B")],
    tolerance: Annotated[str | None, options.option("--tolerance")] = None,
    json: options.Json = False,
) -> None:
    """Compare two results of bench: what differs between the runs, and how much faster or slower B is.

    Exit code 1 if a cell of B is slower than in A by more than noise, or if B's run ended before it had measured all of
    A's cells.
    """
    from gemmaspec.cli.text import compare as text
    from gemmaspec.measure.bench.compare import compare as compared
    from gemmaspec.measure.bench.result import read_result

    comparison = compared(read_result(a), read_result(b), tolerance=_share(tolerance))
    worse = comparison.slower or comparison.lost
    document = {
        "ok": not worse,
        "slower": comparison.slower,
        "lost": comparison.lost,
        "differences": comparison.differences,
        "cells": comparison.changes,
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
    }
    shown = text.lines(comparison, str(a), str(b), width=output.width_of(sys.stdout))
    page.answer(document, shown, as_json=json)
    raise typer.Exit(1 if worse else 0)


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
    if text.strip().endswith("%") or value >= 1:
        return value / 100
    return value
