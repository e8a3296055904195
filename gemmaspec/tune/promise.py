"""What cells that are measured say of arms that are not: which cannot win, and which is the most promising."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from gemmaspec.bench.cells import Arm
from gemmaspec.predict.predict import Asked, Predicted, predict
from gemmaspec.rows import NONE, Row
from gemmaspec.tune.tried import Tried


def predicted(tried: Tried, arm: Arm, arms: Sequence[Arm]) -> tuple[Predicted, ...] | None:
    """Return what an arm will do at each load, by cells of its family and of the target alone in the first rung.

    None where no arm of its family was measured: nothing is known of another draft.
    """
    alone = next(one for one in arms if one.alone)
    family = [one for one in arms if one.family == arm.family]
    rows = [*_rows(tried, alone), *(row for one in family for row in _rows(tried, one))]
    if arm.alone or not any(row.k for row in rows):
        return None
    context = round(statistics.median(row.context for row in rows))
    rows = [row.model_copy(update={"context": context}) for row in rows]  # every arm gets the same prompts
    found = predict(rows, Asked(ks=(arm.k,), concurrencies=tried.loads, contexts=(context,), method=arm.method))
    by_load = {one.concurrency: one for one in found if one.k == arm.k}
    return tuple(by_load[load] for load in tried.loads)


def cannot_win(tried: Tried, arm: Arm, arms: Sequence[Arm]) -> str | None:
    """Say which measured arm an unmeasured one cannot reach at any load; None where it may win.

    Its prediction's interval has to end below that arm's measured speed at every load: what is merely predicted to be
    slower is measured.
    """
    found = predicted(tried, arm, arms)
    if found is None:
        return None
    highest = [one.interval[1] for one in found]
    for other in arms:
        rates = tried.rates(other, 0) if other.key not in tried.failed else None
        if rates and all(high < rate for high, rate in zip(highest, rates, strict=True)):
            shown = ", ".join(
                f"at most {high:,.0f} of {rate:,.0f} tok/s at {load}"
                for high, rate, load in zip(highest, rates, tried.loads, strict=True)
            )
            return f"predicted to reach {shown} against {other}"
    return None


def hope(tried: Tried, arm: Arm, arms: Sequence[Arm]) -> float:
    """Return how fast an arm may be at best, over no speculation: what is tried next. 0 where nothing is known."""
    found = predicted(tried, arm, arms)
    alone = next(one for one in arms if one.alone)
    base = tried.rates(alone, 0)
    if found is None or base is None:
        return 0.0
    return statistics.fmean(one.interval[1] / rate for one, rate in zip(found, base, strict=True))


def _rows(tried: Tried, arm: Arm) -> Iterator[Row]:
    for one in tried.cells:
        if one.arm == arm.key and one.rung == 0 and arm.key not in tried.failed:
            yield Row(
                method=arm.method if arm.k else NONE,
                k=arm.k,
                concurrency=one.load,
                context=one.context,
                acceptance=one.acceptance if len(one.acceptance) == arm.k else (0.0,) * arm.k,
                tokens_per_second=one.tokens_per_second,
            )
