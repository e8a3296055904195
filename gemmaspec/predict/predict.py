"""Predicted rows: E(k) of the acceptance curve over T(k, batch, context) of the fit, each with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gemmaspec.predict.acceptance import Curve, curve
from gemmaspec.predict.rows import NONE, Row, Setting, setting_json
from gemmaspec.predict.steps import NOISE, Cell, Steps, StepTime, Timed

QUANTILE: Final = 1.645
"""Standard deviations of a normal distribution on either side of its mean that contain 90 %."""
WIDEST: Final = 2.0
"""Largest relative deviation; an interval does not grow beyond it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The cells to predict."""

    ks: tuple[int, ...]
    concurrencies: tuple[int, ...]
    contexts: tuple[int, ...] = ()
    """Prompt lengths; if empty, those that were measured."""
    method: str | None = None
    """The method for k > 0 if no row has one."""
    conditional: float | None = None
    """Conditional acceptance per token from elsewhere; used if no row has an acceptance."""
    with_curves: bool = True
    """Whether the rows' acceptance belongs to the requested pair; if not, only their step times are used."""
    idle_alone: frozenset[str] = frozenset()
    """Patches for speed that do nothing without speculation: rows without it are the same with and without them."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One predicted cell."""

    method: str
    k: int
    concurrency: int
    context: int
    curve: Curve
    step: StepTime
    setting: Setting
    measured: bool
    """Whether this cell was measured."""

    @property
    def tokens_per_second(self) -> float:
        """Total of all requests."""
        return self.curve.tokens_per_step * self.concurrency / self.step.seconds

    @property
    def deviation(self) -> float:
        """Relative standard deviation of a measurement around the prediction."""
        accepted = self.curve.deviation / self.curve.tokens_per_step
        return math.sqrt(self.step.deviation**2 + accepted**2 + NOISE**2)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of tokens per second that contains a measurement with a probability of 90 %."""
        factor = math.exp(QUANTILE * min(self.deviation, WIDEST))
        return self.tokens_per_second / factor, self.tokens_per_second * factor


def predict(rows: Sequence[Row], asked: Asked) -> tuple[Predicted, ...]:
    """Return every requested cell in each measured setting. Settings and methods are predicted separately.

    Rows without speculation belong to every method of their setting, because a draft adds to their step. Rows with
    different patches for speed have different settings.
    """
    settings = list(dict.fromkeys(row.setting for row in rows))
    bare = {_alone(one, asked) for one in settings if _lent(rows, one, asked)} - {row.setting for row in rows if row.k}
    settings = [one for one in settings if one not in bare]
    return tuple(one for setting in settings for one in _of_setting(rows, setting, asked))


def predicted_json(one: Predicted, *, baseline: Predicted | None) -> dict[str, Any]:
    """Return a predicted row, in the form of a measured one."""
    return {
        "method": one.method,
        "k": one.k,
        "concurrency": one.concurrency,
        "context": one.context,
        "acceptance": [round(rate, 6) for rate in one.curve.rates],
        "acceptance_measured": one.curve.measured,
        "step_ms": one.step.seconds * 1000,
        "tokens_per_second": one.tokens_per_second,
        "interval": list(one.interval),
        "speedup": one.tokens_per_second / baseline.tokens_per_second if baseline else None,
        "measured": one.measured,
        **setting_json(one.setting),
    }


def baseline_of(one: Predicted, found: Iterable[Predicted]) -> Predicted | None:
    """Return the cell without speculation to compare a cell with."""
    for other in found:
        same = (other.setting, other.concurrency, other.context) == (one.setting, one.concurrency, one.context)
        if same and other.k == 0:
            return other
    return None


def _of_setting(rows: Sequence[Row], setting: Setting, asked: Asked) -> Iterator[Predicted]:
    own = [row for row in rows if row.setting == setting] + _lent(rows, setting, asked)
    methods = list(dict.fromkeys(row.method for row in own if row.k)) or [asked.method or ""]
    known = {(row.method, row.k, row.concurrency, row.context) for row in own}

    def row_of(method: str, cell: Cell, step: StepTime) -> Predicted:
        drafted = _of(own, method) if asked.with_curves else []
        found = curve(drafted, k=cell.k, context=cell.context, known=asked.conditional)
        return Predicted(
            method=method,
            k=cell.k,
            concurrency=cell.batch,
            context=cell.context,
            curve=found,
            step=step,
            setting=setting,
            measured=(method, cell.k, cell.batch, cell.context) in known,
        )

    for context in asked.contexts or sorted({row.context for row in own}):
        fits = _fits(own, methods, context)
        drafting = {method: fit for method, fit in fits.items() if method not in (NONE, "")}
        for cell in (Cell(k, b, context) for b in asked.concurrencies for k in asked.ks):
            if cell.k == 0:
                yield row_of(NONE, cell, _surest(fits.values(), cell))
            else:
                yield from (row_of(method, cell, fit.at(cell)) for method, fit in drafting.items())


def _alone(setting: Setting, asked: Asked) -> Setting:
    """Return the setting of the same server without speculation."""
    return replace(setting, patches=tuple(one for one in setting.patches or () if one not in asked.idle_alone))


def _lent(rows: Sequence[Row], setting: Setting, asked: Asked) -> list[Row]:
    """Return rows without speculation for a setting that has none: those of the same patches that act there."""
    base = _alone(setting, asked)
    if base == setting or setting.patches is None or any(row.k == 0 and row.setting == setting for row in rows):
        return []
    return [row for row in rows if row.k == 0 and row.setting == base]


def _fits(own: Sequence[Row], methods: Sequence[str], context: int) -> dict[str, Steps]:
    """Return the fit of every method for prompts of one length, and that without speculation if it was measured."""
    alone = [row for row in own if row.k == 0]
    bare = {NONE: Steps(NONE, _timed(alone), context=context)} if alone else {}
    return bare | {method: Steps(method, _timed([*alone, *_of(own, method)]), context=context) for method in methods}


def _surest(fits: Iterable[Steps], cell: Cell) -> StepTime:
    """Return the step of the most certain fit; rows with a draft also show how a step grows with its tokens."""
    return min((fit.at(cell) for fit in fits), key=lambda one: one.deviation)


def _of(rows: Iterable[Row], method: str) -> list[Row]:
    return [row for row in rows if row.method == method]


def _timed(rows: Iterable[Row]) -> list[Timed]:
    return [Timed(Cell(row.k, row.concurrency, row.context), row.step) for row in rows]
