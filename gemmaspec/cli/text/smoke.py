"""What `smoke` prints: its progress, a row for each check, and what to do about those that failed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gemmaspec.cli import output
from gemmaspec.cli.text import page, table

if TYPE_CHECKING:
    from gemmaspec.look.smoke import SmokeProgress, SmokeReport
    from gemmaspec.measure.smoke.check import Check
    from gemmaspec.measure.smoke.row import SmokeRow


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
    document = {
        "ok": not verdict.failed,
        "verdict": verdict.line(),
        "counts": verdict.counts,
        "failed": verdict.failed,
        "warned": verdict.warned,
        "vllm": verdict.vllm,
        "seconds": round(report.seconds, 1),
        "rows": report.rows,
    }
    page.answer(document, _lines(report), as_json=as_json)


def _lines(report: SmokeReport) -> Iterator[str]:
    for row in report.rows:
        word = "warn" if row.word == "fail" and not row.counts else row.word
        yield f"{page.judged(word, 7)}  {row.id:<4}{row.name}  {row.seen}"
        if row.word == "fail":
            yield from page.rows_below(_help_rows(row, report.verdict.vllm), indent=9)
    yield f"{report.verdict.line()}, in {report.seconds:.0f} s"


def _help_rows(row: SmokeRow, vllm: str | None) -> Iterator[page.Row]:
    """Yield how to see a failure, what it may be, and what to do about it."""
    yield "ask", row.curl
    yield from page.named("known", (issue.line(vllm) for issue in row.known))
    yield "fix", row.fix


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
