"""What compilation is worth: a factor between compiled steps and those with graphs alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.rows import Row, Setting

_PRIOR: Final = (-0.06, 0.03)
"""Logarithm of a compiled step over an uncompiled one, and its standard deviation: 4 to 8 % in six cells of an H200
with vLLM 0.32.0, 8 to 10 % in two with 0.26.0 (measurements/)."""
_CELL: Final = 0.035
"""Standard deviation of the logarithm in one pair of cells: two measurements of 2.5 %."""


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What turns a step of one compilation into one of another."""

    value: float = 1.0
    deviation: float = 0.0
    """Relative standard deviation."""


def factor(rows: Sequence[Row], measured: Setting, wanted: Setting) -> Factor:
    """Return the factor from one setting's steps to another's: from cells that `rows` have of both, and a prior."""
    if measured.graphs == wanted.graphs:
        return Factor()
    steps: dict[tuple[object, ...], dict[str, list[float]]] = {}
    for row in rows:
        cell = (row.method, row.k, row.concurrency, row.context)
        steps.setdefault(cell, {}).setdefault(row.setting.graphs, []).append(math.log(row.step))
    ratios = [
        statistics.mean(one["compiled"]) - statistics.mean(one["uncompiled"])
        for one in steps.values()
        if {"compiled", "uncompiled"} <= one.keys()
    ]
    mean, spread = _PRIOR
    weight = 1 / spread**2 + len(ratios) / _CELL**2
    log = (mean / spread**2 + sum(ratios) / _CELL**2) / weight
    return Factor(value=math.exp(log if wanted.graphs == "compiled" else -log), deviation=max(weight**-0.5, 0.015))
