"""T(k, batch, context): the time of one step, fitted to few measured cells.

    T = t_0 + t_1 N + t_2 b                                  the target verifies N = b (k + 1) tokens of b requests
      + [k > 0] (j + j_b b)                                  what speculation costs before it drafts anything
      + k (d + d_b b)                                        the draft, once for each token
      + (c_0 b + [k > 0] (c_1 + c_2 b)) (context - c̄)        the cache and the prompts

The cache is not always shared by the tokens that one request verifies: up to 0.32.0 vLLM's Triton kernel reads it with
one program for each head when it verifies, and with many when it does not (docs/explanations/measured-speed.md).

t_0 … c_2 belong to the machine, the models, the vLLM and its settings. Each has a prior in units of the shortest
measured step, so that one cell is enough to say something and ten to say it well (Bayesian linear regression,
Rasmussen & Williams: Gaussian Processes for Machine Learning, 2006, chapter 2.1). Residuals are
carried to nearby cells by a Gaussian process over relative residuals (the same, 2.2). How a step grows with N is one
of three hypotheses, weighed by how well each explains the cells: in proportion, in the steps of vLLM's CUDA graphs
(whose batches are padded), or with falling growth, as experts of a mixture are read once however many tokens want
them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.predict.linear import Cholesky, dot

MAX_CELLS: Final = 120
"""Maximum number of cells in a fit, whose time grows with their third power."""
NOISE: Final = 0.025
"""Relative standard deviation of one measurement of a cell."""
MISFIT: Final = 0.03
"""Relative standard deviation of the residuals."""
FAR: Final = 2.0
"""How much less well the equation fits a prompt of twice the length, in shares of MISFIT."""
LARGEST: Final = 0.3
"""Largest residual as a share of a step; contradictory rows would have larger ones."""
PARALLEL: Final = frozenset({"dflash", "dspark"})
"""Methods that draft all tokens in one pass."""
_FREE: Final = frozenset({"ngram", "suffix"})
"""Methods without a model."""


@dataclass(frozen=True)
class Cell:
    """A cell whose step time was measured or requested."""

    k: int
    batch: int
    context: int


@dataclass(frozen=True)
class Timed:
    """A measured step."""

    cell: Cell
    seconds: float
    repeats: int = 1


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    deviation: float
    """Relative standard deviation."""


class Steps:
    """A fit of one method in one setting for prompts of one length, in tokens.

    `measured` has its cells and those without speculation. Cells of other lengths count less, the further the less.
    """

    def __init__(self, method: str, measured: Sequence[Timed], *, context: int) -> None:
        if not measured:
            raise ValueError("nothing was measured")
        merged = _merged(measured)[:MAX_CELLS]
        left = _Leftover(merged)
        fits = [_Fit(method, merged, growth, left, context) for growth in _GROWTHS]
        best = max(fit.evidence for fit in fits)
        weights = [math.exp(fit.evidence - best) for fit in fits]
        self._left = left
        self._fits = [(fit, weight / sum(weights)) for fit, weight in zip(fits, weights, strict=True)]

    def at(self, cell: Cell) -> StepTime:
        """Return the step of a cell: the weighted mean over the hypotheses."""
        near, spread = self._left.near(cell)
        found = [(*fit.at(cell, near), weight) for fit, weight in self._fits]
        mean = sum(seconds * weight for seconds, _, weight in found)
        variance = sum(((seconds * own) ** 2 + (seconds - mean) ** 2) * weight for seconds, own, weight in found)
        return StepTime(mean, math.sqrt(variance / mean**2 + spread))


@dataclass(frozen=True)
class _Growth:
    """One hypothesis about how a step grows with the tokens that it verifies."""

    name: str
    prior: float
    of: Callable[[int], float]


def graph_size(tokens: int) -> int:
    """Return the padded batch of a CUDA graph for `tokens`: 1, 2, 4, then multiples of 8, and of 16 above 256.

    vllm/config/vllm.py `_set_cudagraph_sizes`, 0.26.0 and 0.32.0; above 512 no graph is captured.
    """
    if tokens <= 4:
        return tokens if tokens < 3 else 4
    step = 8 if tokens <= 256 else 16
    return -(-tokens // step) * step if tokens <= 512 else tokens


_EXPERTS: Final = 16
_GROWTHS: Final = (
    _Growth("in proportion", 0.5, float),
    _Growth("padded", 0.4, lambda tokens: float(graph_size(tokens))),
    _Growth("falling", 0.1, lambda tokens: _EXPERTS * (1 - (1 - 1 / _EXPERTS) ** tokens)),
)

_Term = tuple[float, float, float]
"""A term of the equation: its value in a cell, and the prior of its coefficient in shortest steps (mean, deviation)."""


def _drafting(method: str) -> tuple[float, float]:
    """Return the prior of d: a pass of the draft over a step of the target."""
    if method in PARALLEL or method in _FREE:
        return 0.01, 0.02
    return (0.25, 0.3) if method == "draft_model" else (0.06, 0.1)


def _terms(method: str, cell: Cell, growth: _Growth, middle: float) -> list[_Term]:
    k, b = cell.k, cell.batch
    speculates = 1.0 if k else 0.0
    beyond = (cell.context - middle) / 1000
    return [
        (1.0, 0.95, 1.0),
        (growth.of(b * (k + 1)), 0.02, 0.025),
        (float(b), 0.004, 0.01),
        (speculates, 0.15, 0.3),
        (speculates * b, 0.004, 0.01),
        (float(k), *_drafting(method)),
        (float(k * b), 0.003, 0.01),
        (b * beyond, 0.003, 0.03),
        (speculates * beyond, 0.003, 0.15),
        (speculates * b * beyond, 0.001, 0.08),
    ]


class _Leftover:
    """The residuals as shares of a step, which nearby cells have in common."""

    def __init__(self, measured: Sequence[Timed]) -> None:
        self._cells = [one.cell for one in measured]
        matrix = [[MISFIT**2 * _nearness(a, b) for b in self._cells] for a in self._cells]
        for i, one in enumerate(measured):
            matrix[i][i] += NOISE**2 / one.repeats
        self._system = Cholesky(matrix)

    def weights(self, left: Sequence[float]) -> list[float]:
        """Return the weight of each measured cell, given its residual."""
        return self._system.solve(left)

    def near(self, cell: Cell) -> tuple[list[float], float]:
        """Return a cell's correlation with each measured one, and its remaining variance."""
        near = [MISFIT**2 * _nearness(cell, other) for other in self._cells]
        half = self._system.half(near)
        return near, max(MISFIT**2 - dot(half, half), 0.0)


class _Fit:
    """The equation under one hypothesis."""

    def __init__(self, method: str, measured: Sequence[Timed], growth: _Growth, left: _Leftover, context: int) -> None:
        self._method, self._growth, self._context = method, growth, context
        self._unit = min(one.seconds for one in measured)
        drafted = [one.cell.context for one in measured if one.cell.k] or [one.cell.context for one in measured]
        self._middle = sum(drafted) / len(drafted)
        self._fit(measured)
        over = [one.seconds / self._unit / self._equation(one.cell)[0] - 1 for one in measured]
        self._handed_on = left.weights(over)

    def at(self, cell: Cell, near: Sequence[float]) -> tuple[float, float]:
        """Return the step of a cell in seconds, and the relative deviation of the equation there."""
        level, variance = self._equation(cell)
        over = min(max(dot(near, self._handed_on), -LARGEST), LARGEST)
        return level * (1 + over) * self._unit, math.sqrt(variance) / level

    def _fit(self, measured: Sequence[Timed]) -> None:
        rows = [self._weighed(one.cell) for one in measured]
        values = [one.seconds / self._unit for one in measured]
        matrix = [[dot(a, b) for b in rows] for a in rows]
        for i, (one, value) in enumerate(zip(measured, values, strict=True)):
            misfit = MISFIT * (1 + FAR * _lengths_apart(one.cell.context, self._context))
            matrix[i][i] += value**2 * (misfit**2 + NOISE**2 / one.repeats)
        system = Cholesky(matrix)
        off = [value - self._prior(one.cell) for one, value in zip(measured, values, strict=True)]
        weights = system.solve(off)
        columns = list(zip(*rows, strict=True))
        halves = [system.half(column) for column in columns]
        self._coefficients = [dot(column, weights) for column in columns]
        self._known = [[dot(a, b) for b in halves] for a in halves]
        self.evidence = math.log(self._growth.prior) - dot(off, weights) / 2 - system.log_determinant / 2
        """The log probability of the measured steps, including the hypothesis's prior."""

    def _equation(self, cell: Cell) -> tuple[float, float]:
        """Return its value in units, at least a third of the shortest step, and its variance."""
        own = self._weighed(cell)
        mean = self._prior(cell) + dot(own, self._coefficients)
        known = dot(own, [dot(row, own) for row in self._known])
        return max(mean, 1 / 3), max(dot(own, own) - known, 0.0)

    def _prior(self, cell: Cell) -> float:
        return sum(value * mean for value, mean, _ in _terms(self._method, cell, self._growth, self._middle))

    def _weighed(self, cell: Cell) -> list[float]:
        return [value * spread for value, _, spread in _terms(self._method, cell, self._growth, self._middle)]


def _nearness(a: Cell, b: Cell) -> float:
    """Return the correlation of the residuals of two cells, from 0 to 1."""
    apart = (
        (math.log2(a.batch / b.batch) / 1.5) ** 2
        + (math.log2((a.k + 1) / (b.k + 1)) / 0.8) ** 2
        + (_lengths_apart(a.context, b.context) / 1.5) ** 2
    )
    return math.exp(-apart / 2) * (1.0 if bool(a.k) == bool(b.k) else 0.3)


def _lengths_apart(one: int, other: int) -> float:
    """Return how many times the longer of two prompts is twice as long as the other; short ones are alike."""
    return abs(math.log2((one + 512) / (other + 512)))


def _merged(measured: Sequence[Timed]) -> list[Timed]:
    """Return repeated cells as one, by their geometric mean."""
    logs: dict[Cell, list[tuple[float, int]]] = defaultdict(list)
    for one in measured:
        logs[one.cell].append((math.log(one.seconds), one.repeats))
    merged = []
    for cell, values in logs.items():
        repeats = sum(times for _, times in values)
        merged.append(Timed(cell, math.exp(sum(log * times for log, times in values) / repeats), repeats))
    return merged
