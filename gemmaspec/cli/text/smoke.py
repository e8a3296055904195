"""What `smoke` prints: its progress, a row for each check, and what to do about those that failed.

What `gemmaspec compare` prints for people.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.bench.compare import CellChange, Comparison
from gemmaspec.cli import output
from gemmaspec.cli.text import table

if TYPE_CHECKING:
    from gemmaspec.deploy.views.smoke import SmokeProgress, SmokeReport
    from gemmaspec.smoke.check import Check, SmokeRow


_SHOWN = 60

_COLUMNS = (
    table.Column("method"),
    table.Column("k", right=True),
    table.Column("requests", right=True),
    table.Column("context", right=True),
    table.Column("A tok/s", rank=3, right=True),
    table.Column("B tok/s", rank=4, right=True),
    table.Column("change", right=True),
    table.Column("noise", rank=2, right=True),
    table.Column("E(k)", rank=5, right=True),
    table.Column("ms/step", rank=6, right=True),
    table.Column(""),
)


def lines(found: Comparison, a: str, b: str, *, width: int | None) -> Iterator[str]:
    """Yield what differs, a row for each cell, and the verdict, for `width` characters; None for no limit."""
    yield f"A  {a}"
    yield f"B  {b}"
    yield ""
    yield "what differs"
    for one in found.differences:
        yield f"  {one.what:<30}  {_short(one.a)} → {_short(one.b)}"
    if not found.differences:
        yield "  nothing: the same profile, stack and settings"
    yield ""
    patched = any(change.patches != "none" for change in found.changes)
    columns = (*_COLUMNS[:2], table.Column("patches", rank=1), *_COLUMNS[2:]) if patched else _COLUMNS
    cells = [_cells(change) for change in found.changes]
    if patched:
        cells = [(*row[:2], change.patches, *row[2:]) for row, change in zip(cells, found.changes, strict=True)]
    yield from table.lines(columns, cells, width=width, indent="  ")
    for name, side in ((found.only_a, "A"), (found.only_b, "B")):
        yield from (f"  only in {side}: {one}" for one in name)
    if not all(one.steady for one in found.changes):
        yield "  ! the machine became slower or faster during this cell; measure it again before you rely on it"
    if any(one.assumed for one in found.changes):
        yield "  noise in parentheses is assumed, because only one round counts; bench --rounds 2 measures it"
    yield ""
    yield _verdict(found)
    if found.lost:
        yield "B is incomplete: its run ended before it had measured all of A's cells"


def _cells(one: CellChange) -> tuple[str, ...]:
    return (
        one.method,
        str(one.k),
        str(one.concurrency),
        f"{one.context:,}",
        f"{one.a['tokens_per_second']:,.1f}",
        f"{one.b['tokens_per_second']:,.1f}",
        f"{one.change:+.1%}",
        f"({one.noise:.1%})" if one.assumed else f"{one.noise:.1%}",
        f"{one.a['acceptance_length']:.2f} → {one.b['acceptance_length']:.2f}",
        f"{one.a['step_ms']:.2f} → {one.b['step_ms']:.2f}",
        ("slower" if one.slower else "faster" if one.faster else "") + ("" if one.steady else " !"),
    )


def _verdict(found: Comparison) -> str:
    slower = sum(one.slower for one in found.changes)
    faster = sum(one.faster for one in found.changes)
    cells = len(found.changes)
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
