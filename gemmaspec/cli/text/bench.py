"""What `gemmaspec bench` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.check.predict.envelope import Speeds, envelope_json, speeds_of, table_line
from gemmaspec.cli.text import page, table
from gemmaspec.cli.text.predict import counted
from gemmaspec.measure.bench.fastest import sentences
from gemmaspec.measure.bench.page import remarks
from gemmaspec.measure.bench.result import mark_of, spread_of
from gemmaspec.measure.bench.rows import Row, alone, patch_set, said, speedup

if TYPE_CHECKING:
    from gemmaspec.measure.servers.bench_plan import BenchPlan

_COLUMNS = (
    table.Column("method"), table.number("k"), table.number("requests"), table.number("context"),
    table.number("tok/s"), table.number("spread", 3), table.number("speedup"), table.number("E(k)", 1),
    table.number("ms/step", 2), table.number("TTFT ms", 4), table.Column(""),
)  # fmt: skip


def lines(document: Mapping[str, Any], *, width: int | None) -> Iterator[str]:
    """Yield the result as a table that fits `width` characters; None for no limit."""
    rows: Sequence[Row] = document["rows"]
    yield f"{document['profile']} on {', '.join(_where(document))}"
    kinds = {counted(prompt="answer_tokens" in row) for row in rows}
    yield f"tok/s: {' or '.join(sorted(kinds))}" if kinds else ""
    yield ""
    yield from _table(rows, width=width)
    yield ""
    yield from page.rows_below(_remarks(document))


def _table(rows: Sequence[Row], *, width: int | None) -> list[str]:
    cells = [_cells(row, speedup(row, rows)) for row in rows]
    columns: tuple[table.Column, ...] = _COLUMNS
    if any(patch_set(row) for row in rows):
        columns = (*_COLUMNS[:2], table.Column("patches"), *_COLUMNS[2:])
        cells = [(*cell[:2], said(row), *cell[2:]) for cell, row in zip(cells, rows, strict=True)]
    return table.lines(columns, cells, width=width, indent="  ")


def _remarks(document: Mapping[str, Any]) -> Iterator[page.Row]:
    """Yield what follows from the table, and what a reader must know of it."""
    yield from page.named("speed", sentences(document))
    for _, _, _, speeds in _speeds(document):
        yield from page.named("profile", table_line(speeds))
    yield from page.named("accepted", _accepted(document["rows"]))
    yield from page.named("note", remarks(document))


def plan_lines(plan: BenchPlan) -> Iterator[str]:
    """Yield what a bench would measure."""
    starts = f"{plan.starts} server start{'s' if plan.starts > 1 else ''}"
    title = f"{plan.profile}: would measure {len(plan.tasks)} cells, with {starts}; another k compiles anew"
    rows = []
    for arm in plan.arms:
        cells = [str(task.cell) for task in plan.tasks if task.arm == arm]
        rows.append((str(arm), ", ".join(dict.fromkeys(cells))))
    return page.lines(title, rows)


def _accepted(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what share of the tokens at each position was accepted, for each k."""
    for row in rows:
        shares = row.get("acceptance")
        if row["k"] and row["concurrency"] == 1 and shares:
            each = ", ".join(f"{share:.0%}" for share in shares)
            yield f"k={row['k']}: {row['acceptance_length']:.2f} tokens a step ({each} by position)"


def envelope(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the best k of each load, and the table that it gives, for each method, context and set of patches."""
    best = []
    for method, patches, context, speeds in _speeds(document):
        best.append({"method": method, "patches": patches, "context": context, **envelope_json(speeds)})
    return best


def _speeds(document: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str] | None, int | None, Speeds]]:
    """Yield each method that drafts, its patches for speed, its context if that was set, and its speeds.

    The arm of a table is left out: its k is that of another arm.
    """
    rows: Sequence[Row] = document["rows"]
    contexts = document["settings"].get("contexts")
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        if row["k"] and "k_by_requests" not in str(row.get("arm")):
            context = row["context"] if contexts else None
            groups.setdefault((row["method"], patch_set(row), context), []).append(row)
    for (method, patches, context), group in groups.items():
        bases = filter(None, [alone(row, rows) for row in group])
        cells = [(row["concurrency"], row["k"], row["tokens_per_second"]) for row in (*bases, *group)]
        yield method, patches, context, speeds_of(cells)


def _where(document: Mapping[str, Any]) -> Iterator[str]:
    facts = document["provenance"]
    yield ", ".join(facts["gpu"]) if facts.get("gpu") else str(facts.get("machine") or "machine not known")
    versions = {arm.get("vllm") for arm in facts.get("arms", {}).values() if arm.get("vllm")}
    yield from (f"vLLM {version}" for version in sorted(versions))
    yield f"{document['settings']['rounds']} rounds"


def _cells(row: Row, times: float | None) -> tuple[str, ...]:
    spread = spread_of(row)
    load = (row["method"], str(row["k"]), str(row["concurrency"]), f"{row['context']:,}")
    speed = (
        f"{row['tokens_per_second']:,.1f}",
        "–" if spread is None else f"{spread:.1%}",
        f"{times:.2f}" if times else "-",
    )
    step = (f"{row['acceptance_length']:.2f}", f"{row['step_ms']:.2f}", f"{row['ttft_ms']:.1f}")
    return (*load, *speed, *step, mark_of(row))
