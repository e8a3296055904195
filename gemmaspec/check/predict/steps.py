"""T(k, batch, context): the time of one step of decoding, fitted to few measured cells.

    T = t_0 + t_1 N + t_2 b + t_3 (⌈N / 64⌉ - 1)             the target verifies N = b (k + 1) tokens of b requests
      + [k > 0] (j + j_b b)                                  what speculation costs before it drafts anything
      + k (d + d_b b)                                        the draft, once for each token
      + (c_0 b + [k > 0] (c_1 + c_2 b)) context               the cache

A matrix kernel takes 64 tokens at once, so that the 65th costs another tile (t_3). The cache is not always shared by
the tokens that one request verifies: up to 0.32.0 vLLM's Triton kernel reads it with one program for each head when it
verifies, and with many when it does not (docs/explanations/measured-speed.md). `Reading` says which, and thereby what
c_1 is without a measurement.

t_0 … c_2 belong to the machine, the models, the vLLM and its settings. Each has a prior in units of the shortest
measured step, so that one cell is enough to say something and ten to say it well (Bayesian linear regression,
Rasmussen & Williams: Gaussian Processes for Machine Learning, 2006, chapter 2.1). Residuals are
carried to nearby cells by a Gaussian process over relative residuals (the same, 2.2). How a step grows with N is one
of four hypotheses, weighed by how well each explains the cells: in proportion, in the steps of vLLM's CUDA graphs
(whose batches are padded), in rows of 16, which the kernel of 4-bit weights multiplies together, or with falling
growth, as an expert of a mixture is read once for all tokens that go through it.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.predict.algebra import Cholesky, dot, lower_products, products
from gemmaspec.core.releases.drafting import BLOCKS
from gemmaspec.core.rows import Setting

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
_FREE: Final = frozenset({"ngram", "suffix"})
"""Methods without a model."""


@dataclass(frozen=True)
class StepAt:
    """A cell whose step time was measured or requested."""

    k: int
    batch: int
    context: int

    @property
    def tokens(self) -> int:
        """Tokens that a step verifies."""
        return self.batch * (self.k + 1)


@dataclass(frozen=True)
class Timed:
    """A measured step."""

    cell: StepAt
    seconds: float
    repeats: float = 1
    """How many measurements of usual noise it is worth."""


@dataclass(frozen=True)
class StepServer:
    """What of a server decides how its steps grow, without a measurement."""

    split: int = 0
    """Requests up to which verification reads the cache with many programs."""
    padded: bool = False
    """Whether graphs are of whole requests, as from vLLM 0.31.0 on, instead of tokens."""
    sequences: int | None = None
    """max_num_seqs, where the list of graphs ends."""


def server_of(setting: Setting, sequences: int | None = None) -> StepServer:
    """Return what a setting says of it.

    triton-verify-split-kv and 0.33.0 split the cache for two requests of a 31B at once, and triton-group-geometry for
    ten (their evidence.json); backends other than TRITON_ATTN verify causal batches in FlashAttention.
    """
    numbers = tuple(int(part) for part in (setting.vllm or "").split(".")[:2] if part.isdigit())
    patches = setting.patches or ()
    if "triton-verify-split-kv" in patches or numbers >= (0, 33):
        split = 2
    else:
        split = 0
    if split and "triton-group-geometry" in patches:
        split = 10
    if setting.backend not in (None, "TRITON_ATTN"):
        split = _ALL
    return StepServer(split=split, padded=numbers >= (0, 31), sequences=sequences)


_ALL: Final = 1_000_000


@dataclass(frozen=True)
class StepTime:
    """A predicted step."""

    seconds: float
    deviation: float
    """Relative standard deviation."""


_USUAL: Final = StepServer()


class Steps:
    """A fit of one method in one setting for prompts of one length, in tokens.

    `measured` has its cells and those without speculation. Cells of other lengths count less, the further the less.
    """

    def __init__(self, method: str, measured: Sequence[Timed], *, context: int, server: StepServer = _USUAL) -> None:
        if not measured:
            raise ValueError("nothing was measured")
        merged = _merged(measured)[:MAX_CELLS]
        left = _Leftover(merged)
        fits = [_Fit(_Equation(method, growth, server), merged, left, context) for growth in _GROWTHS]
        best = max(fit.evidence for fit in fits)
        weights = [math.exp(fit.evidence - best) for fit in fits]
        self._left = left
        self._fits = [(fit, weight / sum(weights)) for fit, weight in zip(fits, weights, strict=True)]

    def at(self, cell: StepAt) -> StepTime:
        """Return the step of a cell: the weighted mean over the hypotheses."""
        near, spread = self._left.near(cell)
        estimates = [(*fit.at(cell, near), weight) for fit, weight in self._fits]
        mean = sum(seconds * weight for seconds, _, weight in estimates)
        variance = sum(((seconds * off) ** 2 + (seconds - mean) ** 2) * weight for seconds, off, weight in estimates)
        return StepTime(mean, math.sqrt(variance / mean**2 + spread))


def graph_tokens(cell: StepAt, server: StepServer) -> int:
    """Return the tokens of the CUDA graph that a step of decoding runs in.

    vllm/config/vllm.py `_set_cudagraph_sizes`: up to 0.30 lists of 1, 2, 4, multiples of 8, and of 16 above 256 tokens;
    from 0.31.0 on such lists of requests, each of k + 1 tokens, up to max_num_seqs. Above 512 tokens there is no graph
    (1,024 on a B200).
    """
    tokens = cell.batch * (cell.k + 1)
    if server.padded:
        requests = _listed(cell.batch)
        if server.sequences is not None and cell.batch <= server.sequences:
            requests = min(requests, server.sequences)
        padded = requests * (cell.k + 1)
    else:
        padded = _listed(tokens)
    if padded <= 512:
        return padded
    return tokens


def _listed(number: int) -> int:
    if number <= 4:
        if number < 3:
            return number
        return 4
    step = 8 if number <= 256 else 16
    return -(-number // step) * step


_EXPERTS: Final = 16
_TILE: Final = 64
_ROWS: Final = 16


@dataclass(frozen=True)
class _Growth:
    """One hypothesis about how a step grows with the tokens that it verifies."""

    name: str
    prior: float
    of: Callable[[StepAt, StepServer], float]


_GROWTHS: Final = (
    _Growth("in proportion", 0.4, lambda cell, _: float(cell.tokens)),
    _Growth("padded", 0.3, lambda cell, server: float(graph_tokens(cell, server))),
    _Growth("by rows", 0.2, lambda cell, _: float(-(-cell.tokens // _ROWS) * _ROWS)),
    _Growth("falling", 0.1, lambda cell, _: _EXPERTS * (1 - (1 - 1 / _EXPERTS) ** cell.tokens)),
)

_Term = tuple[float, float, float]
"""A term of the equation: its value in a cell, and the prior of its coefficient in shortest steps (mean, deviation)."""


@dataclass(frozen=True)
class _Equation:
    """The terms of one method under one hypothesis."""

    method: str
    growth: _Growth
    server: StepServer

    def terms(self, cell: StepAt) -> list[_Term]:
        k, b = cell.k, cell.batch
        speculates = 1.0 if k else 0.0
        thousands = cell.context / 1000
        unsplit = speculates if b > self.server.split else 0.0
        return [
            (1.0, 0.95, 1.0),
            (self.growth.of(cell, self.server), 0.02, 0.025),
            (float(b), 0.004, 0.01),
            (math.ceil(cell.tokens / _TILE) - 1.0, 0.2, 0.2),
            (speculates, 0.15, 0.3),
            (speculates * b, 0.004, 0.01),
            (float(k), *self._drafting),
            (float(k * b), 0.003, 0.01),
            (b * thousands, 0.005, 0.008),
            (speculates * thousands, 0.005, 0.02),
            (unsplit * thousands, 0.2, 0.12),
            (speculates * b * thousands, 0.001, 0.02),
        ]

    @property
    def _drafting(self) -> tuple[float, float]:
        """Return the prior of d: a pass of the draft over a step of the target."""
        if self.method in BLOCKS or self.method in _FREE:
            return 0.01, 0.02
        if self.method == "draft_model":
            return (0.25, 0.3)
        return (0.06, 0.1)


class _Leftover:
    """The residuals as shares of a step, which nearby cells have in common."""

    def __init__(self, measured: Sequence[Timed]) -> None:
        self._cells = [cell.cell for cell in measured]
        matrix = [[MISFIT**2 * _nearness(a, b) for b in self._cells[: i + 1]] for i, a in enumerate(self._cells)]
        for i, timed in enumerate(measured):
            matrix[i][i] += NOISE**2 / timed.repeats
        self._system = Cholesky(matrix)

    def weights(self, left: Sequence[float]) -> list[float]:
        """Return the weight of each measured cell, given its residual."""
        return self._system.solve(left)

    def near(self, cell: StepAt) -> tuple[list[float], float]:
        """Return a cell's correlation with each measured one, and its remaining variance."""
        near = [MISFIT**2 * _nearness(cell, other) for other in self._cells]
        half = self._system.half(near)
        return near, max(MISFIT**2 - dot(half, half), 0.0)


class _Fit:
    """The equation under one hypothesis."""

    def __init__(self, equation: _Equation, measured: Sequence[Timed], left: _Leftover, context: int) -> None:
        self._terms, self._growth, self._context = functools.cache(equation.terms), equation.growth, context
        self._unit = min(timed.seconds for timed in measured)
        self._fit(measured)
        over = [timed.seconds / self._unit / self._level(timed.cell) - 1 for timed in measured]
        self._handed_on = left.weights(over)

    def at(self, cell: StepAt, near: Sequence[float]) -> tuple[float, float]:
        """Return the step of a cell in seconds, and the relative deviation of the equation there."""
        level = self._level(cell)
        over = min(max(dot(near, self._handed_on), -LARGEST), LARGEST)
        return level * (1 + over) * self._unit, math.sqrt(self._variance(cell)) / level

    def _fit(self, measured: Sequence[Timed]) -> None:
        rows = [self._weighed(timed.cell) for timed in measured]
        values = [timed.seconds / self._unit for timed in measured]
        matrix = lower_products(rows)
        for i, (timed, value) in enumerate(zip(measured, values, strict=True)):
            misfit = MISFIT * (1 + FAR * _lengths_apart(timed.cell.context, self._context))
            matrix[i][i] += value**2 * (misfit**2 + NOISE**2 / timed.repeats)
        system = Cholesky(matrix)
        off = [value - self._prior(timed.cell) for timed, value in zip(measured, values, strict=True)]
        weights = system.solve(off)
        columns = list(zip(*rows, strict=True))
        halves = [system.half(column) for column in columns]
        self._coefficients = [dot(column, weights) for column in columns]
        self._known = products(halves)
        self.evidence = math.log(self._growth.prior) - dot(off, weights) / 2 - system.log_determinant / 2
        """The log probability of the measured steps, including the hypothesis's prior."""

    def _level(self, cell: StepAt) -> float:
        """Return the equation's value in units, at least a third of the shortest step."""
        return max(self._prior(cell) + dot(self._weighed(cell), self._coefficients), 1 / 3)

    def _variance(self, cell: StepAt) -> float:
        """Return the variance of that value."""
        weighed = self._weighed(cell)
        known = dot(weighed, [dot(row, weighed) for row in self._known])
        return max(dot(weighed, weighed) - known, 0.0)

    def _prior(self, cell: StepAt) -> float:
        return sum(value * mean for value, mean, _ in self._terms(cell))

    def _weighed(self, cell: StepAt) -> list[float]:
        return [value * spread for value, _, spread in self._terms(cell)]


def _nearness(a: StepAt, b: StepAt) -> float:
    """Return the correlation of the residuals of two cells, from 0 to 1."""
    # each distance in units of its own, in which cells differ by a standard deviation
    batches = math.log2(a.batch / b.batch) / 1.5
    tokens = math.log2((a.k + 1) / (b.k + 1)) / 0.8
    lengths = _lengths_apart(a.context, b.context) / 1.5
    alike = 1.0 if bool(a.k) == bool(b.k) else 0.3
    return math.exp(-(batches**2 + tokens**2 + lengths**2) / 2) * alike


def _lengths_apart(context: int, other: int) -> float:
    """Return how many times the longer of two prompts is twice as long as the other; short ones are alike."""
    return abs(math.log2((context + 512) / (other + 512)))


def _merged(measured: Sequence[Timed]) -> list[Timed]:
    """Return repeated cells as one, by their geometric mean."""
    logs: dict[StepAt, list[tuple[float, float]]] = defaultdict(list)
    for timed in measured:
        logs[timed.cell].append((math.log(timed.seconds), timed.repeats))
    merged = []
    for cell, values in logs.items():
        repeats = sum(times for _, times in values)
        mean = sum(log * times for log, times in values) / repeats
        merged.append(Timed(cell, math.exp(mean), repeats))
    return merged
