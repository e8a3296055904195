"""report.html: one self-contained page from a result, drawn by templates/result.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gemmaspec.core.pages import filled
from gemmaspec.measure.bench.fastest import sentences
from gemmaspec.measure.bench.result import mark_of
from gemmaspec.measure.bench.rows import Row, alone, speedup

_SHOWN: Final = ("profile", "date", "gemmaspec", "provenance", "settings")


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a result: the template with the result's rows in it, as JSON that can hold no markup."""
    rows: Sequence[Row] = document["rows"]
    timed = []
    for row in rows:
        times = speedup(row, rows)
        timed.append({**row, "times": round(times, 3) if times else None, "mark": mark_of(row)})
    shown = {name: document.get(name) for name in _SHOWN} | {"rows": timed, "remarks": list(remarks(document))}
    shown["fastest"] = list(sentences(document))
    return filled("result.html", shown)


def remarks(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the caveats that a reader must know first."""
    rows = document["rows"]
    yield from _draft_that_costs(rows)
    for arm, why in (document.get("failed") or {}).items():
        yield f"{arm} did not start: {why}"
    if not document["complete"]:
        yield "Incomplete: not every cell was measured."
    if any(not row["steady"] for row in rows):
        yield "Cells marked ! may be unreliable: the reference step changed by more than 3 % while they were measured."
    if any(mark_of(row) not in ("", "!") for row in rows):
        yield "Cells marked with rounds count only those in which the reference step changed by at most 3 %."
    if any(row.get("weights") == "dummy" for row in rows):
        yield "Weights are random (--dummy-weights): times are real, answers mean nothing."
    if any(row.get("acceptance_by") == "synthetic" for row in rows):
        yield "Acceptance is synthetic (rejection_sample_method: synthetic): costs are real, E(k) is not."
    if document["settings"].get("ignore_eos"):
        yield "Answers continue past their natural end (ignore_eos), which overstates acceptance: use costs, not E(k)."
    if any(cell["foreign_tokens"] for cell in document["cells"]):
        yield "Another client used the server: it generated tokens that this run did not request."


def _draft_that_costs(rows: Sequence[Row]) -> Iterator[str]:
    """Yield that the draft costs more than it saves, with the figures that say why, where it is faster at no load."""
    drafting = []
    for row in rows:
        times = speedup(row, rows)
        if times and times >= 1:
            return
        if times:
            drafting.append(row)
    if not drafting:
        return
    row = min(drafting, key=lambda row: (row["concurrency"], row["k"]))
    base = alone(row, rows)
    assert base, "a speedup is over the row without a draft"
    step, kept = base["step_ms"], row["acceptance_length"]
    each = (row["step_ms"] - step) / row["k"]
    if each < 0:  # answers of a token or two: too few steps to say what one takes
        return
    yield (
        f"The draft costs more than it saves: each of its k={row['k']} tokens takes about {each:.1f} ms, and a token "
        f"of the target alone {step:.1f} ms; {kept:.2f} tokens a step do not make up for that."
    )
    if row.get("machine") == "cpu":
        yield (
            "On a CPU a pass of so small a model takes as long as its operations take to be started, one after the "
            "other, and hardly depends on its size: a tiny pair shows that drafting works, not how fast."
        )
