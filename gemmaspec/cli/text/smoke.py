"""What `smoke` prints: its progress, a row for each check, and what to do about those that failed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gemmaspec.cli import output
from gemmaspec.cli.text import table

if TYPE_CHECKING:
    from gemmaspec.deploy.views.smoke import SmokeProgress, SmokeReport
    from gemmaspec.smoke.check import Check
    from gemmaspec.smoke.row import SmokeRow

_COLOURS = {"pass": 32, "fail": 31, "warn": 33, "unknown": 35, "skipped": 2}


@contextlib.contextmanager
def progress() -> Iterator[SmokeProgress]:
    """Progress on stderr: a bar on a terminal, one line elsewhere."""
    from gemmaspec.deploy.views.smoke import SmokeProgress

    if not sys.stderr.isatty():
        yield SmokeProgress(note=output.progress, asked=lambda _, __: None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from gemmaspec.cli.text.screen import Screen

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Screen(stderr=True), transient=True) as bar:
        task = bar.add_task("asking")

        def asked(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        yield SmokeProgress(note=output.progress, asked=asked)


def show(report: SmokeReport, *, as_json: bool) -> None:
    """Print a run."""
    verdict = report.verdict
    if as_json:
        output.json_data(
            {
                "ok": not verdict.failed,
                "verdict": verdict.line(),
                "counts": verdict.counts,
                "failed": verdict.failed,
                "warned": verdict.warned,
                "vllm": verdict.vllm,
                "seconds": round(report.seconds, 1),
                "rows": report.rows,
            }
        )
        return
    for row in report.rows:
        _row(row, vllm=verdict.vllm)
    output.told(f"{verdict.line()}, in {report.seconds:.0f} s")


def _row(row: SmokeRow, *, vllm: str | None) -> None:
    word = "warn" if row.word == "fail" and not row.counts else row.word
    output.told(f"{output.coloured(word.ljust(7), _COLOURS[word])}  {row.id:<4}{row.name}  {row.seen}")
    if row.word != "fail":
        return
    if row.curl:
        output.data(f"         shows it  {row.curl}")
    for one in row.known:
        output.told(f"         known     {one.line(vllm)}")
    if row.fix:
        output.told(f"         fix       {row.fix}")


def checks(found: Sequence[Check], *, as_json: bool) -> None:
    """Print the checks themselves."""
    if as_json:
        rows = [
            {
                "id": one.id,
                "name": one.name,
                "counts": one.counts,
                "needs": sorted(need.name.lower() for need in one.needs),
            }
            for one in found
        ]
        output.json_data({"checks": rows})
        return
    columns = (
        table.Column("ID"),
        table.Column("A FAILURE"),
        table.Column("NEEDS", rank=1),
        table.Column("CHECK", wraps=True),
    )
    table.show(
        columns,
        [
            (
                one.id,
                "fails" if one.counts else "warns",
                ", ".join(sorted(need.name.lower() for need in one.needs)) or "-",
                one.name,
            )
            for one in found
        ],
    )
