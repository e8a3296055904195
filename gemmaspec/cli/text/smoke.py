"""What `smoke` prints: its progress, a row for each check, and what to do about those that failed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gemmaspec.cli import output
from gemmaspec.cli.text import table

if TYPE_CHECKING:
    from gemmaspec.look.smoke import SmokeProgress, SmokeReport
    from gemmaspec.measure.smoke.check import Check
    from gemmaspec.measure.smoke.row import SmokeRow


_COLOURS = {"pass": 32, "fail": 31, "warn": 33, "unknown": 35, "skipped": 2}


@contextlib.contextmanager
def progress() -> Iterator[SmokeProgress]:
    """Progress on stderr: a bar on a terminal, one line elsewhere."""
    from gemmaspec.look.smoke import SmokeProgress

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
    if row.word == "fail" and not row.counts:
        word = "warn"
    else:
        word = row.word
    output.told(f"{output.coloured(word.ljust(7), _COLOURS[word])}  {row.id:<4}{row.name}  {row.seen}")
    if row.word != "fail":
        return
    if row.curl:
        output.data(f"         shows it  {row.curl}")
    for issue in row.known:
        output.told(f"         known     {issue.line(vllm)}")
    if row.fix:
        output.told(f"         fix       {row.fix}")


def checks(checks: Sequence[Check], *, as_json: bool) -> None:
    """Print the checks themselves."""
    needs = {check.id: sorted(need.name.lower() for need in check.needs) for check in checks}
    documents, rows = [], []
    for check in checks:
        documents.append({"id": check.id, "name": check.name, "counts": check.counts, "needs": needs[check.id]})
        rows.append((check.id, "fails" if check.counts else "warns", ", ".join(needs[check.id]) or "-", check.name))
    columns = (
        table.Column("ID"), table.Column("A FAILURE"), table.Column("NEEDS", 1), table.Column("CHECK", wraps=True),
    )  # fmt: skip
    table.answer({"checks": documents}, columns, rows, as_json=as_json)
