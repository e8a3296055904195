"""What `gemmaspec predict` says of each measured cell without having seen it: tables of docs/guides/predict.md and
docs/explanations/measured-speed.md, which tools/reference.py writes."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gemmaspec.check.predict.curve import Curve
from gemmaspec.check.predict.predict import Cells, predict
from gemmaspec.core.rows import NONE, Row, parse_rows

ROOT: Final = Path(__file__).parent.parent
OLDER: Final = ROOT / "tests" / "data" / "speed-h200-31b.json"
"""vLLM 0.26.0, each cell measured twice."""
NEWER: Final = ROOT / "measurements" / "h200-31b-nvfp4-0.32.0.json"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """One measured cell, and what is predicted of it from all others."""

    row: Row
    """The first of its measurements."""
    measured: float
    """Tokens per second of all requests, the mean of its measurements."""
    predicted: float
    interval: tuple[float, float]

    @property
    def error(self) -> float:
        """Prediction over measurement, minus 1."""
        return self.predicted / self.measured - 1

    @property
    def held(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.interval[0] <= self.measured <= self.interval[1]


Split = Callable[[Row], object]
"""Rows with the same answer are left out together; those with None never are."""


@functools.cache
def left_out(file: Path, split: Split | None = None) -> tuple[LeftOut, ...]:
    """Return every cell of a file, predicted from the rows that remain without its part; each is a part by default.

    The acceptance is the cell's own, so that what is judged is time.
    """
    rows = parse_rows(file.read_text(), file=file.name)
    split = split or _cell
    parts = dict.fromkeys(part for row in rows if (part := split(row)) is not None)
    return tuple(one for part in parts for one in _part(rows, split, part))


def _part(rows: Sequence[Row], split: Split, part: object) -> Iterator[LeftOut]:
    others = [row for row in rows if split(row) != part]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if split(row) == part:
            groups.setdefault(_cell(row), []).append(row)
    for own in groups.values():
        yield from _left_out(own, others)


def _cell(row: Row) -> tuple[Any, ...]:
    return row.setting, row.method, row.k, row.concurrency, row.context


def _left_out(own: Sequence[Row], others: Sequence[Row]) -> Iterator[LeftOut]:
    first = own[0]
    asked = Cells(
        ks=(first.k,),
        concurrencies=(first.concurrency,),
        contexts=(first.context,),
        method=first.method,
        compile=first.setting.compile,
    )
    for one in predict(others, asked):
        if (one.setting.apart, one.method) == (first.setting.apart, first.method):
            timed = replace(one, curve=Curve(rates=first.acceptance, measured=first.k, deviation=0.0))
            measured = statistics.mean(row.tokens_per_second for row in own)
            rate = timed.tokens_per_second
            yield LeftOut(row=first, measured=measured, predicted=rate, interval=timed.interval)


SPLITS: Final[dict[str, tuple[Path, Split | None]]] = {
    "each cell": (NEWER, None),
    "each k of a method": (NEWER, lambda row: (row.method, row.k) if row.k else None),
    "each number of requests": (NEWER, lambda row: row.concurrency),
    "4 and 8 requests": (NEWER, lambda row: row.concurrency > 2 or None),
    "8,192 tokens at 4 and 8 requests": (NEWER, lambda row: (row.concurrency > 1 and row.context > 256) or None),
    "8,192 tokens": (NEWER, lambda row: row.context > 256 or None),
    "256 tokens with a draft": (NEWER, lambda row: (row.context == 256 and row.k > 0) or None),
    "compiled servers": (NEWER, lambda row: row.setting.graphs == "compiled" or None),
    "mtp but for k 4": (NEWER, lambda row: (row.method == "mtp" and row.k != 4) or None),
    "each cell, 0.26.0": (OLDER, None),
    "each k of a method, 0.26.0": (OLDER, lambda row: (row.method, row.k) if row.k else None),
    "each number of requests, 0.26.0": (OLDER, lambda row: row.concurrency),
}
"""What is left out, by its name in the table."""


# Parts of the documentation


def in_short() -> str:
    """Return the README's sentence, in one line; tests/check/test_predict.py compares it."""
    found = left_out(NEWER)
    near = sum(abs(one.error) < 0.1 for one in found)
    return (
        f"On an H200 with vLLM 0.32.0, each of {len(found)} measured cells was predicted from the others: half of them "
        f"within {_median(found)}, {near} within 10 %, and all within {_largest(found)}"
    )


def by_method() -> str:
    """Return the errors of leaving each cell out, by method and vLLM."""
    lines = ["| vLLM | method | cells | median | largest | in the 90 % interval |", "|---|---|---|---|---|---|"]
    for vllm, file in (("0.32.0", NEWER),):
        found = left_out(file)
        for method in (*dict.fromkeys(one.row.method for one in found), "all"):
            own = [one for one in found if method in (one.row.method, "all")]
            name = method if method in ("none", "all") else f"`{method}`"
            lines.append(_line(vllm, name, len(own), _median(own), _largest(own), sum(one.held for one in own)))
    return "\n".join(lines)


def by_split() -> str:
    """Return the errors of leaving out whole parts: a k, a load, a length of prompts, a compilation."""
    head = ("left out", "cells", "median", "largest", "within 10 %", "in the interval", "upper over lower end")
    lines = [_line(*head), "|---" * len(head) + "|"]
    for name, (file, split) in SPLITS.items():
        if file != NEWER:
            continue  # held by the tests alone
        found = left_out(file, split)
        widths = [one.interval[1] / one.interval[0] for one in found]
        near = sum(abs(one.error) < 0.1 for one in found)
        width = f"{statistics.median(widths):.2f}, at most {max(widths):.2f}"
        held = sum(one.held for one in found)
        lines.append(_line(name, len(found), _median(found), _largest(found), near, held, width))
    return "\n".join(lines)


_LOADS: Final = (1, 2, 4, 8)


def every_cell() -> str:
    """Return what was measured of each cell of vLLM 0.32.0, a line for each server, and how far off a prediction is."""
    servers: dict[tuple[object, ...], list[tuple[LeftOut, dict[str, Any], LeftOut]]] = {}
    for cell in _cells():
        one = cell[0]
        servers.setdefault((_name(one), one.row.k or "-", f"{one.row.context:,}"), []).append(cell)
    head = (
        "method",
        "k",
        "prompt",
        *(f"{load} at once" for load in _LOADS),
        "step alone, ms",
        "predicted, at most off",
    )
    lines = [_line(*head), "|---" * len(head) + "|"]
    for server, cells in servers.items():
        speeds = {one.row.concurrency: _speed(one, raw, alone) for one, raw, alone in cells}
        step = next((f"{raw['step_ms']:.1f}" for one, raw, _ in cells if one.row.concurrency == 1), "")
        worst = max((one.error for one, _, _ in cells), key=abs)
        lines.append(_line(*server, *(speeds.get(load, "") for load in _LOADS), step, _signed(worst)))
    return "\n".join(lines)


def _speed(one: LeftOut, raw: dict[str, Any], alone: LeftOut) -> str:
    times = f" ({one.measured / alone.measured:.2f})" if one.row.k else ""
    return f"{one.measured:.0f}{times}" + ("" if raw.get("steady", True) else r" \*")


def _cells() -> Iterator[tuple[LeftOut, dict[str, Any], LeftOut]]:
    """Yield each cell with its first row and the cell without speculation, in the order of the tables."""
    found = left_out(NEWER)
    rows = parse_rows(NEWER.read_text(), file=NEWER.name)
    whole: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row, raw in zip(rows, json.loads(NEWER.read_text())["rows"], strict=True):
        whole.setdefault(_cell(row), raw)
    settings = list(dict.fromkeys(one.row.setting for one in found))
    order = list(dict.fromkeys(one.row.method for one in found))
    order.sort(key=("none", "mtp", "eagle3", "dflash", "dspark").index)
    pairs = sorted(
        ((one, whole[_cell(one.row)]) for one in found),
        key=lambda pair: (
            settings.index(pair[0].row.setting),
            pair[0].row.context,
            order.index(pair[0].row.method),
            pair[0].row.k,
            pair[0].row.concurrency,
        ),
    )
    for one, raw in pairs:
        (alone,) = [
            other
            for other in found
            if _cell(other.row) == (one.row.setting, NONE, 0, one.row.concurrency, one.row.context)
        ]
        yield one, raw, alone


def _name(one: LeftOut) -> str:
    return f"{one.row.method}{', compiled' if one.row.setting.compile == 'default' else ''}"


def _median(found: Iterable[LeftOut]) -> str:
    return f"{statistics.median(abs(one.error) for one in found):.1%}".replace("%", " %")


def _largest(found: Iterable[LeftOut]) -> str:
    return f"{max(abs(one.error) for one in found):.1%}".replace("%", " %")


def _signed(share: float) -> str:
    text = f"{share:+.1%}".replace("%", " %")
    return text[1:] if text[1:] == "0.0 %" else text


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


PARTS = {
    "accuracy-by-method": by_method,
    "accuracy-by-split": by_split,
    "measured-cells": every_cell,
}
