"""Predicted rows: E(k) of the acceptance curve, T of the steps and P of the prompts, each with its uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gemmaspec.check.predict.curve import Curve, curve
from gemmaspec.check.predict.prompts import Prompts
from gemmaspec.check.predict.steps import NOISE, StepAt, Steps, StepTime, Timed, server_of
from gemmaspec.core.rows import NONE, Row, Setting, setting_json

QUANTILE: Final = 1.645
"""Standard deviations of a normal distribution on either side of its mean that contain 90 %."""
WIDEST: Final = 0.7
"""Largest relative deviation: an interval reaches at most from a third to three times its middle."""
ANSWER: Final = 256
"""Tokens of an answer where neither the rows nor the request say how long it is."""


@dataclass(frozen=True, kw_only=True)
class Cells:
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
    answer_tokens: int | None = None
    """Tokens of an answer; None for as many as the measured ones had."""
    compile: str | bool | None = None
    """How the server that is asked about compiles; None for as most rows do."""
    sequences: int | None = None
    """Its max_num_seqs."""
    idle_alone: frozenset[str] = frozenset()
    """Patches for speed that do nothing without speculation, or that the server lacks there: rows need none of them."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One predicted cell."""

    method: str
    k: int
    concurrency: int
    context: int
    curve: Curve
    step: StepTime
    """A step of decoding."""
    setting: Setting
    measured: bool
    """Whether this cell was measured."""
    prompts: tuple[float, float] = (0.0, 0.0)
    """Seconds in which a request waits for its own and others' prompts, once for each answer, and their deviation."""
    answer_tokens: int = ANSWER

    @property
    def first_token(self) -> float | None:
        """Seconds that half of the requests wait at most where all arrive together; None where it is not known."""
        # a pass of vLLM on an H100 and larger reads 8,192 tokens (max_num_batched_tokens, arg_utils.py)
        passes = min(max(self.concurrency * self.context / 8192, 1.0), self.concurrency)
        return self.prompts[0] * (1 + 1 / passes) / 2 or None

    @property
    def tokens_per_second(self) -> float:
        """Total of all requests, the wait for the first token included where that is known."""
        return self.concurrency * self.answer_tokens / (self.prompts[0] + self._decoding)

    @property
    def decoding_per_second(self) -> float:
        """Total of all requests while they decode."""
        return self.curve.tokens_per_step * self.concurrency / self.step.seconds

    @property
    def deviation(self) -> float:
        """Relative standard deviation of a measurement around the prediction."""
        whole = self.prompts[0] + self._decoding
        accepted = self.curve.deviation / self.curve.tokens_per_step
        decoding = math.hypot(self.step.deviation, accepted) * self._decoding / whole
        return math.sqrt(decoding**2 + (self.prompts[1] / whole) ** 2 + NOISE**2)

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of tokens per second that contains a measurement with a probability of 90 %."""
        factor = math.exp(QUANTILE * min(self.deviation, WIDEST))
        return self.tokens_per_second / factor, self.tokens_per_second * factor

    @property
    def _decoding(self) -> float:
        """Seconds of an answer's steps; the first token comes with the prompt."""
        if self.prompts[0]:
            tokens = self.answer_tokens - 1
        else:
            tokens = self.answer_tokens
        return tokens / self.curve.tokens_per_step * self.step.seconds


def predict(rows: Sequence[Row], asked: Cells) -> tuple[Predicted, ...]:
    """Return every requested cell in each measured setting. Settings and methods are predicted separately.

    Rows without speculation belong to every method of their setting, because a draft adds to their step. Rows with
    different patches for speed, backends or vLLMs have different settings; compilation is a factor.
    """
    groups: dict[tuple[Any, ...], list[Setting]] = {}
    for row in rows:
        groups.setdefault(row.setting.apart, []).append(row.setting)
    settings = [_compiled(group, asked) for group in groups.values()]
    drafting = {row.setting.apart for row in rows if row.k}
    bare = {alone_of(setting, asked).apart for setting in settings if _lent(rows, setting, asked)} - drafting
    predicted: list[Predicted] = []
    for setting in settings:
        if setting.apart not in bare:
            predicted += _of_setting(rows, setting, asked)
    return tuple(predicted)


def _compiled(settings: Sequence[Setting], asked: Cells) -> Setting:
    """Return the setting that is predicted from rows of settings that explain each other."""
    if asked.compile is not None:
        wanted = replace(settings[0], compile=asked.compile)
        if wanted.apart == settings[0].apart:
            return wanted
        return settings[0]
    return statistics.mode(settings)


def predicted_json(row: Predicted, *, baseline: Predicted | None) -> dict[str, Any]:
    """Return a predicted row, in the form of a measured one."""
    load = {"method": row.method, "k": row.k, "concurrency": row.concurrency, "context": row.context}
    accepted = {
        "acceptance": [round(rate, 6) for rate in row.curve.rates],
        "acceptance_measured": row.curve.measured,
    }
    times = {
        "step_ms": row.step.seconds * 1000,
        "ttft_ms": row.first_token and row.first_token * 1000,
        "answer_tokens": row.answer_tokens,
    }
    if baseline:
        speedup = row.tokens_per_second / baseline.tokens_per_second
    else:
        speedup = None
    speed = {
        "decoding_per_second": row.decoding_per_second,
        "tokens_per_second": row.tokens_per_second,
        "interval": list(row.interval),
        "speedup": speedup,
        "measured": row.measured,
    }
    return load | accepted | times | speed | setting_json(row.setting)


def baseline_of(row: Predicted, rows: Iterable[Predicted]) -> Predicted | None:
    """Return the cell without speculation to compare a cell with."""
    for other in rows:
        same = (other.setting, other.concurrency, other.context) == (row.setting, row.concurrency, row.context)
        if same and other.k == 0:
            return other
    return None


def _of_setting(rows: Sequence[Row], setting: Setting, asked: Cells) -> Iterator[Predicted]:
    same = [row for row in rows if row.setting.apart == setting.apart] + _lent(rows, setting, asked)
    methods = list(dict.fromkeys(str(row.method) for row in same if row.k)) or [asked.method or ""]
    known = {(row.method, row.k, row.concurrency, row.context) for row in same if row.setting.graphs == setting.graphs}
    drafted = {method: _of(same, method) if asked.with_curves else [] for method in (*methods, NONE)}
    prompts = Prompts(same, min(row.step for row in same))
    answers = [row.answer_tokens for row in same if row.answer_tokens]
    answer = asked.answer_tokens or round(statistics.median(answers) if answers else ANSWER)

    def row_of(method: str, cell: StepAt, step: StepTime) -> Predicted:
        drawn = curve(drafted[method], k=cell.k, context=cell.context, known=asked.conditional)
        measured = (method, cell.k, cell.batch, cell.context) in known
        return Predicted(
            method=method,
            k=cell.k,
            concurrency=cell.batch,
            context=cell.context,
            curve=drawn,
            step=step,
            setting=setting,
            measured=measured,
            prompts=prompts.at(cell.batch, cell.context),
            answer_tokens=answer,
        )

    timed = _Timing(same, setting, prompts, asked.sequences)
    for context in asked.contexts or sorted({row.context for row in same}):
        fits = timed.fits(methods, context)
        drafting = {method: fit for method, fit in fits.items() if method not in (NONE, "")}
        for cell in (StepAt(k, b, context) for b in asked.concurrencies for k in asked.ks):
            if cell.k == 0:
                # the most certain fit: rows with a draft also show how a step grows with its tokens
                surest = min((fit.at(cell) for fit in fits.values()), key=lambda estimate: estimate.deviation)
                yield row_of(NONE, cell, timed.step(surest))
            else:
                yield from (row_of(method, cell, timed.step(fit.at(cell))) for method, fit in drafting.items())


class _Timing:
    """The steps of one setting's rows, without prompts and as one compilation has them."""

    def __init__(self, rows: Sequence[Row], setting: Setting, prompts: Prompts, sequences: int | None) -> None:
        self._server = server_of(setting, sequences)
        factors = {own: factor(rows, own, setting) for own in dict.fromkeys(row.setting for row in rows)}
        self._factor = max(factors.values(), key=lambda factor: factor.deviation, default=Factor())
        self._timed = [(row, _timed(row, prompts, factors[row.setting])) for row in rows]

    def fits(self, methods: Sequence[str], context: int) -> dict[str, Steps]:
        """Return the fit of every method for prompts of one length, and that without speculation if measured."""
        alone = [timed for row, timed in self._timed if row.k == 0]
        fits = {}
        if alone:
            fits[NONE] = self._fit(NONE, alone, context)
        for method in methods:
            # a method's own steps share the terms of the target with those without a draft
            own = [timed for row, timed in self._timed if row.method == method]
            fits[method] = self._fit(method, [*alone, *own], context)
        return fits

    def step(self, step_time: StepTime) -> StepTime:
        """Return a step with the uncertainty of its compilation."""
        return StepTime(step_time.seconds, math.hypot(step_time.deviation, self._factor.deviation))

    def _fit(self, method: str, timed: Sequence[Timed], context: int) -> Steps:
        return Steps(method, timed, context=context, server=self._server)


def _timed(row: Row, prompts: Prompts, by: Factor) -> Timed:
    seconds, noisier = prompts.decoding(row)
    return Timed(StepAt(row.k, row.concurrency, row.context), seconds * by.value, 1 / noisier**2)


def alone_of(setting: Setting, asked: Cells) -> Setting:
    """Return the setting of the same server without speculation."""
    return replace(setting, patches=setting.patches and tuple(i for i in setting.patches if i not in asked.idle_alone))


def _lent(rows: Sequence[Row], setting: Setting, asked: Cells) -> list[Row]:
    """Return rows without speculation for a setting that has none: those of the same patches that act there."""
    base, apart = alone_of(setting, asked).apart, setting.apart
    if base == apart or any(row.k == 0 and row.setting.apart == apart for row in rows):
        return []
    return [row for row in rows if row.k == 0 and row.setting.apart == base]


def _of(rows: Iterable[Row], method: str) -> list[Row]:
    return [row for row in rows if row.method == method]


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
    ratios = []
    for step in steps.values():
        if {"compiled", "uncompiled"} <= step.keys():
            ratios.append(statistics.mean(step["compiled"]) - statistics.mean(step["uncompiled"]))
    mean, spread = _PRIOR
    weight = 1 / spread**2 + len(ratios) / _CELL**2
    log = (mean / spread**2 + sum(ratios) / _CELL**2) / weight
    return Factor(value=math.exp(log if wanted.graphs == "compiled" else -log), deviation=max(weight**-0.5, 0.015))
