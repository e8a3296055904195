"""report.html: one self-contained page from a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gemmaspec.bench.arms_table import arms_table, text
from gemmaspec.bench.patchset import nearest, said, several
from gemmaspec.bench.result import mark_of, spread_of
from gemmaspec.bench.sheet import sheet
from gemmaspec.bench.svg import Chart, Line, svg

Row = Mapping[str, Any]
Range = tuple[float, float]


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a result."""
    rows: Sequence[Row] = document["rows"]
    title = f"{document['profile']}, measured {str(document['date'])[:10]}"
    body = "\n".join(
        [
            f"<h1>{text(title)}</h1>",
            f'<p class="dim">{text(_subtitle(document))}</p>',
            *(f'<p class="warn">{text(one)}</p>' for one in remarks(document)),
            f"<p>{text(_headline(rows))}</p>",
            "<h2>Speed, acceptance, step time</h2>",
            f'<div class="charts">{"".join(svg(chart) for chart in charts(document))}</div>',
            "<h2>Every cell</h2>",
            f'<div class="scroll"><table>{_head()}{"".join(_row(row, rows) for row in rows)}</table></div>',
            "<h2>What was measured</h2>",
            *arms_table(document),
        ]
    )
    return sheet(title, body)


def alone(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row without speculation to compare a row with. Contexts may differ slightly.

    Of several with different patches for speed, that with the most similar set.
    """
    return nearest(
        row,
        [
            one
            for one in rows
            if one["k"] == 0
            and one["concurrency"] == row["concurrency"]
            and abs(one["context"] - row["context"]) <= 0.1 * max(one["context"], row["context"])
        ],
    )


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the caveats that a reader must know first."""
    rows = document["rows"]
    for arm, why in (document.get("failed") or {}).items():
        yield f"{arm} did not start: {why}"
    if not document["complete"]:
        yield "Incomplete: not every cell was measured."
    if any(not row["steady"] for row in rows):
        yield "Cells marked ! may be unreliable: the reference step changed by more than 3 % while they were measured."
    if any(mark_of(row) not in ("", "!") for row in rows):
        yield "Cells marked with rounds count only those in which the reference step changed by at most 3 %."
    if any(row.get("acceptance_by") == "synthetic" for row in rows):
        yield "Acceptance is synthetic (rejection_sample_method: synthetic): costs are real, E(k) is not."
    if document["settings"].get("ignore_eos"):
        yield "Answers continue past their natural end (ignore_eos), which overstates acceptance: use costs, not E(k)."
    if any(cell["foreign_tokens"] for cell in document["cells"]):
        yield "Another client used the server: it generated tokens that this run did not request."


def charts(document: Mapping[str, Any]) -> Iterator[Chart]:
    """Yield every chart for which there are enough rows."""
    rows: Sequence[Row] = document["rows"]
    for group in _by_context(rows, document["settings"].get("contexts")):
        where = f", {group[0]['context']:,} prompt tokens" if len(group) < len(rows) else ""
        yield _by_k(group, f"Tokens per second by draft length, total of all requests{where}", "tok/s", _speed)
        yield from _speedup(group, where)
        yield _by_k(group, f"Time per step by draft length{where}", "ms", lambda row: (row["step_ms"], None))
    yield from _acceptance(document)


def _by_context(rows: Sequence[Row], asked: Sequence[int] | None) -> list[list[Row]]:
    """Return groups of rows with about the same context; all of them if the prompts kept their own lengths.

    Their context is then a median, which differs between loads, because more requests ask more of the prompts.
    """
    if asked == [] and rows:
        return [list(rows)]
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda one: one["context"]):
        if groups and row["context"] <= 1.15 * groups[-1][0]["context"] + 8:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _by_k(rows: Sequence[Row], title: str, unit: str, value: Callable[[Row], tuple[float, Range | None]]) -> Chart:
    """Return a chart by draft length: a line for each load, and for each method and set of patches if those differ.

    The most similar row without speculation begins each line.
    """
    groups: dict[tuple[int, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda one: (one["concurrency"], not one["k"])):
        if row["k"]:
            groups.setdefault((row["concurrency"], row["method"], said(row)), []).append(row)
    bases = {key: base for key, own in groups.items() if (base := alone(own[0], rows))}
    for row in rows:
        if not row["k"] and row not in bases.values():
            groups.setdefault((row["concurrency"], "none", said(row)), []).append(row)
    methods, sets, ks = {key[1] for key in groups}, several(rows), sorted({row["k"] for row in rows})
    lines = []
    for key, own in sorted(groups.items()):
        found = {row["k"]: value(row) for row in (*own, *([bases[key]] if key in bases else []))}
        lines.append(
            Line(
                name=", ".join(
                    [
                        f"{key[0]} {'request' if key[0] == 1 else 'requests'}",
                        *([_plain(key[1])] if len(methods) > 1 else []),
                        *([f"patches {key[2]}"] if sets else []),
                    ]
                ),
                values=[found[k][0] if k in found else None for k in ks],
                ranges=[found[k][1] if k in found else None for k in ks],
            )
        )
    places = [str(k) for k in ks]
    return Chart(title=title, x_title="k, drafted tokens a step", y_title=unit, places=places, lines=lines)


def _speed(row: Row) -> tuple[float, Range | None]:
    """Return the speed, and half of the rounds' spread on either side."""
    speed, spread = row["tokens_per_second"], spread_of(row)
    return speed, None if spread is None else (speed * (1 - spread / 2), speed * (1 + spread / 2))


def _speedup(rows: Sequence[Row], where: str) -> Iterator[Chart]:
    places, name = sorted({row["concurrency"] for row in rows}), _naming(rows)
    lines = []
    for one in dict.fromkeys(name(row) for row in rows if row["k"] and alone(row, rows)):
        own = {row["concurrency"]: _times(row, rows) for row in rows if name(row) == one}
        lines.append(Line(name=one, values=[own.get(place) for place in places]))
    if lines:
        yield Chart(
            title=f"Speedup over no speculation{where}",
            x_title="requests at once",
            y_title="times",
            places=[str(place) for place in places],
            lines=[Line(name="no speculation", values=[None]), *lines],
            level=1.0,
        )


def _acceptance(document: Mapping[str, Any]) -> Iterator[Chart]:
    """Return r_i per category for the longest drafts."""
    cells = [cell for cell in document["cells"] if cell["k"] and cell["acceptance_by_category"]]
    if not cells:
        return
    k = max(cell["k"] for cell in cells)
    cell = next(cell for cell in cells if cell["k"] == k)
    yield Chart(
        title=f"Acceptance by position, {_name(cell)}",
        x_title="position",
        y_title="share of drafts",
        places=[str(i) for i in range(1, k + 1)],
        lines=[
            Line(name="all", values=cell["acceptance"]),
            *(Line(name=str(name), values=rates) for name, rates in cell["acceptance_by_category"].items()),
        ],
        top=1.0,
    )


def _headline(rows: Sequence[Row]) -> str:
    """Return the fastest of each concurrency, in one sentence."""
    found, _name = [], _naming(rows)
    for concurrency in sorted({row["concurrency"] for row in rows}):
        own = [row for row in rows if row["concurrency"] == concurrency]
        best = max(own, key=lambda row: float(row["tokens_per_second"]))
        times = _times(best, own)
        more = f", {times:.2f} times the speed without speculation" if times and best["k"] else ""
        found.append(f"at {concurrency}: {_name(best)} with {best['tokens_per_second']:,.1f} tok/s{more}")
    return f"Fastest {'; '.join(found)}." if found else "Nothing was measured."


def _subtitle(document: Mapping[str, Any]) -> str:
    found = document["provenance"]
    where = ", ".join(found["gpu"]) if found.get("gpu") else str(found.get("machine") or "machine not known")
    versions = sorted({str(one.get("vllm")) for one in (found.get("arms") or {}).values() if one.get("vllm")})
    return ", ".join([where, *(f"vLLM {one}" for one in versions), f"gemmaspec {document.get('gemmaspec')}"])


def _head() -> str:
    names = ("", "k", "patches", "at once", "context", "tok/s", "spread", "times", "E(k)", "ms a step", "TTFT (ms)", "")
    return f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"


def _row(row: Row, rows: Sequence[Row]) -> str:
    times = _times(row, rows) if row["k"] else None
    cells = (
        row["method"],
        row["k"],
        said(row),
        row["concurrency"],
        f"{row['context']:,}",
        f"{row['tokens_per_second']:,.1f}",
        "–" if (spread := spread_of(row)) is None else f"{spread:.1%}",
        f"{times:.2f}" if times else "",
        f"{row['acceptance_length']:.2f}",
        f"{row['step_ms']:.2f}",
        f"{row['ttft_ms']:.1f}",
        mark_of(row),
    )
    return f"<tr>{''.join(f'<td>{text(one)}</td>' for one in cells)}</tr>"


def _times(row: Row, rows: Sequence[Row]) -> float | None:
    base = alone(row, rows)
    return row["tokens_per_second"] / base["tokens_per_second"] if base else None


def _name(row: Row) -> str:
    return f"{_plain(row['method'])} k={row['k']}" if row["k"] else "no speculation"


def _plain(method: str) -> str:
    return "no speculation" if method == "none" else str(method).replace("_", " ")


def _naming(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Return the function that names rows: with their patches for speed, if those differ."""
    if not several(rows):
        return _name
    return lambda row: f"{_name(row)}, patches {said(row)}"
