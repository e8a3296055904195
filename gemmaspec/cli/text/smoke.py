"""What `smoke` prints: its progress, a row for each check, and what to do about those that failed.

What `gemmaspec compare` prints for people.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import table
from gemmaspec.measure.bench.compare import CellChange, Comparison

if TYPE_CHECKING:
    from gemmaspec.look.smoke import SmokeProgress, SmokeReport
    from gemmaspec.measure.smoke.check import Check, SmokeRow


_SHOWN = 60

_COLUMNS = (
    table.Column("method"), table.number("k"), table.number("requests"), table.number("context"),
    table.number("A tok/s", 3), table.number("B tok/s", 4), table.number("change"), table.number("noise", 2),
    table.number("E(k)", 5), table.number("ms/step", 6), table.Column(""),
)  # fmt: skip


def lines(comparison: Comparison, a: str, b: str, *, width: int | None) -> Iterator[str]:
    """Yield what differs, a row for each cell, and the verdict, for `width` characters; None for no limit."""
    yield f"A  {a}"
    yield f"B  {b}"
    yield ""
    yield "what differs"
    for difference in comparison.differences:
        yield f"  {difference.what:<30}  {_short(difference.a)} → {_short(difference.b)}"
    if not comparison.differences:
        yield "  nothing: the same profile, stack and settings"
    yield ""
    patched = any(change.patches != "none" for change in comparison.changes)
    columns = (*_COLUMNS[:2], table.Column("patches", rank=1), *_COLUMNS[2:]) if patched else _COLUMNS
    cells = [_cells(change) for change in comparison.changes]
    if patched:
        cells = [(*row[:2], change.patches, *row[2:]) for row, change in zip(cells, comparison.changes, strict=True)]
    yield from table.lines(columns, cells, width=width, indent="  ")
    for name, side in ((comparison.only_a, "A"), (comparison.only_b, "B")):
        yield from (f"  only in {side}: {check}" for check in name)
    if not all(change.steady for change in comparison.changes):
        yield "  ! the machine became slower or faster during this cell; measure it again before you rely on it"
    if any(change.assumed for change in comparison.changes):
        yield "  noise in parentheses is assumed, because only one round counts; bench --rounds 2 measures it"
    yield ""
    yield _verdict(comparison)
    if comparison.lost:
        yield "B is incomplete: its run ended before it had measured all of A's cells"


def _cells(cell: CellChange) -> tuple[str, ...]:
    return (
        cell.method,
        str(cell.k),
        str(cell.concurrency),
        f"{cell.context:,}",
        f"{cell.a['tokens_per_second']:,.1f}",
        f"{cell.b['tokens_per_second']:,.1f}",
        f"{cell.change:+.1%}",
        f"({cell.noise:.1%})" if cell.assumed else f"{cell.noise:.1%}",
        f"{cell.a['acceptance_length']:.2f} → {cell.b['acceptance_length']:.2f}",
        f"{cell.a['step_ms']:.2f} → {cell.b['step_ms']:.2f}",
        ("slower" if cell.slower else "faster" if cell.faster else "") + ("" if cell.steady else " !"),
    )


def _verdict(comparison: Comparison) -> str:
    slower = sum(change.slower for change in comparison.changes)
    faster = sum(change.faster for change in comparison.changes)
    cells = len(comparison.changes)
    return (
        f"of {cells} cells, B is faster in {faster}, slower in {slower} and within noise in {cells - slower - faster}"
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


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
    word = "warn" if row.word == "fail" and not row.counts else row.word
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
    if as_json:
        rows = [
            {"id": check.id, "name": check.name, "counts": check.counts, "needs": needs[check.id]} for check in checks
        ]
        output.json_data({"checks": rows})
        return
    columns = (
        table.Column("ID"), table.Column("A FAILURE"), table.Column("NEEDS", 1), table.Column("CHECK", wraps=True),
    )  # fmt: skip
    fails = {True: "fails", False: "warns"}
    table.show(
        columns, [(check.id, fails[check.counts], ", ".join(needs[check.id]) or "-", check.name) for check in checks]
    )
