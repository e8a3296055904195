"""What cells that are measured say of arms that are not: which cannot win, and which is the most promising."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator, Sequence

from gemmaspec.check.predict.predict import Cells, Predicted, predict
from gemmaspec.core.rows import NONE, Row
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.tune.trials import Tried


def predicted(tried: Tried, arm: Arm, arms: Sequence[Arm]) -> tuple[Predicted, ...] | None:
    """Return what an arm will do at each load, by cells of its family and of the target alone in the first rung.

    None where no arm of its family was measured: nothing is known of another draft.
    """
    alone = next(arm for arm in arms if arm.alone)
    rows = list(_rows(tried, alone))
    for relative in arms:
        if relative.family == arm.family:
            rows += _rows(tried, relative)
    if arm.alone or not any(row.k for row in rows):
        return None
    context = round(statistics.median(row.context for row in rows))
    rows = [row.model_copy(update={"context": context}) for row in rows]  # every arm gets the same prompts
    rows_of_arm = predict(rows, Cells(ks=(arm.k,), concurrencies=tried.loads, contexts=(context,), method=arm.method))
    by_load = {row.concurrency: row for row in rows_of_arm if row.k == arm.k}
    return tuple(by_load[load] for load in tried.loads)


def cannot_win(tried: Tried, arm: Arm, arms: Sequence[Arm]) -> str | None:
    """Say which measured arm an unmeasured one cannot reach at any load; None where it may win.

    Its prediction's interval has to end below that arm's measured speed at every load: what is merely predicted to be
    slower is measured.
    """
    rows = predicted(tried, arm, arms)
    if rows is None:
        return None
    highest = [row.interval[1] for row in rows]
    for other in arms:
        if other.key in tried.failed:
            continue
        rates = tried.rates(other, 0)
        if rates and all(map(operator.lt, highest, rates)):
            shown = []
            for high, rate, load in zip(highest, rates, tried.loads, strict=True):
                shown.append(f"at most {high:,.0f} of {rate:,.0f} tok/s at {load}")
            return f"predicted to reach {', '.join(shown)} against {other}"
    return None


def hope(tried: Tried, arm: Arm, arms: Sequence[Arm]) -> float:
    """Return how fast an arm may be at best, over no speculation: what is tried next. 0 where nothing is known."""
    rows = predicted(tried, arm, arms)
    alone = next(arm for arm in arms if arm.alone)
    base = tried.rates(alone, 0)
    if rows is None or base is None:
        return 0.0
    return statistics.fmean(row.interval[1] / rate for row, rate in zip(rows, base, strict=True))


def _rows(tried: Tried, arm: Arm) -> Iterator[Row]:
    if arm.key in tried.failed:
        return
    for cell in tried.cells:
        if cell.arm == arm.key and cell.rung == 0:
            known = len(cell.acceptance) == arm.k
            yield Row(
                method=arm.method if arm.k else NONE,
                k=arm.k,
                concurrency=cell.load,
                context=cell.context,
                acceptance=cell.acceptance if known else (0.0,) * arm.k,
                tokens_per_second=cell.tokens_per_second,
            )
