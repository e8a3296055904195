"""How long a step takes that was not measured: overhead + bytes / (share of the bandwidth), by family of GPUs.

Launches, sampling and the scheduler take a time that does not grow with the bytes; the rest is the bytes over what of
the memory's bandwidth kernels reach. Two parameters a family are fitted to servers without a draft
(measurements/efficiency.jsonl). One share alone, as if there were no overhead, made small steps of a fast memory too
fast and large ones too slow: 31B in FP8 on an H100 was said to take 21.8 ms, and takes 14.6.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.check.predict.curve import curve
from gemmaspec.check.predict.launches import DEVIATION, launches
from gemmaspec.check.predict.predict import ANSWER, QUANTILE, Cells, Predicted
from gemmaspec.check.predict.steps import StepTime
from gemmaspec.core import data
from gemmaspec.core.releases.drafting import BLOCKS
from gemmaspec.core.rows import NONE, Setting

Weights = Literal["4-bit", "8-bit", "16-bit"]
_LEAST: Final = 0.1
"""Smallest relative standard deviation of a step: of one target on a Spark, 9.0 and 11.0 tokens/s were published."""
_WAITING: Final = 0.2
"""Relative standard deviation of what verification waits for, which is computed."""
_STRANGE: Final = {"weights": 0.2, "family": 0.35}
"""The same where at most one server has those weights, or none is of that family."""


@dataclass(frozen=True)
class Served:
    """One server without a draft, one request at a time."""

    family: str
    weights: Weights
    step_gb: float
    """10^9 bytes that a step reads."""
    share: float
    """Of the bandwidth: step_gb times tokens per second over 10^9 bytes per second."""
    server: str
    tokens_per_second: float
    source: str

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return 1 / self.tokens_per_second

    @property
    def at_peak_s(self) -> float:
        """Seconds that its bytes would take at the whole bandwidth."""
        return self.share / self.tokens_per_second


@dataclass(frozen=True, kw_only=True)
class Law:
    """The two parameters of a family of GPUs."""

    overhead_s: float
    """Seconds of a step that do not grow with its bytes."""
    share: float
    """Of the bandwidth."""
    deviation: float
    """Relative standard deviation of a step."""
    said: str
    """The servers that it was fitted to."""

    def seconds(self, nbytes: float, bandwidth: float, *, part: float = 1.0) -> float:
        """Return the time of a pass over so many bytes that has a part of a whole model's overhead."""
        return self.overhead_s * part + nbytes / bandwidth / self.share


@functools.cache
def served() -> tuple[Served, ...]:
    """Return the servers of measurements/efficiency.jsonl."""
    lines = (data.MEASUREMENTS / "efficiency.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Served(**json.loads(line)) for line in lines)


def law_of(family: str | None, weights: Weights) -> Law:
    """Return the parameters of a family, by all its servers; those of all families where none is known.

    The format of the weights decides the deviation alone: in steps per byte the formats differ by less than servers do.
    """
    return fit_law(served(), family, weights)


def fit_law(servers: Sequence[Served], family: str | None, weights: Weights) -> Law:
    """Fit the parameters of a family to those of these servers that are of it, or else to all of them."""
    of_family = [machine for machine in servers if machine.family == family]
    same = [machine for machine in of_family if machine.weights == weights]
    counted = of_family or servers
    overhead, inverse = _fitted(counted)
    off = [math.log((overhead + machine.at_peak_s * inverse) / machine.step_s) for machine in counted]
    spread = math.sqrt(sum(one**2 for one in off) / len(off))
    exact = len(of_family) <= 2  # two parameters go through two servers: their spread is zero
    if of_family:
        least = _STRANGE["weights"]
    else:
        least = _STRANGE["family"]
    if len(same) > 1 and not exact:
        least = _LEAST
    said = _said(family, weights, of_family, same, servers)
    return Law(overhead_s=overhead, share=1 / inverse, deviation=max(spread, least), said=said)


def _fitted(machines: Sequence[Served]) -> tuple[float, float]:
    """Return overhead and inverse share with the smallest relative errors, squared, of all steps.

    One server alone, or several of one size, say nothing of the overhead: then all is share.
    """
    rows = [(1 / machine.step_s, machine.at_peak_s / machine.step_s) for machine in machines]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a, b = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        overhead = (a * bb - b * ab) / determinant
    else:
        overhead = 0.0
    if overhead <= 0:
        return 0.0, b / bb
    return overhead, max((aa * b - ab * a) / determinant, 1.0)


def _said(
    family: str | None, weights: Weights, of_family: list[Served], same: list[Served], servers: Sequence[Served]
) -> str:
    if same:
        return f"{len(same)} server{'s'[: len(same) > 1]} of this family of GPUs ({family}) with {weights} weights"
    if of_family:
        others = f"{len(of_family)} servers of this family of GPUs ({family}) with other weights"
        return f"{others}, because none with {weights} ones is known"
    others = " and ".join(dict.fromkeys(machine.family for machine in servers))
    return f"servers of other families of GPUs ({others}), because none of {family or 'this one'} is known"


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The bytes of a step over the memory bandwidth that servers reach. Prompts are not covered."""

    bandwidth: float
    """Bytes per second of one GPU."""
    read: Callable[[int, int, int], tuple[int, int]]
    """(context, batch, tokens of each request) → bytes that the target reads, and one pass of the draft."""
    method: str
    setting: Setting
    family: str | None
    """The family of the GPU."""
    weights: tuple[Weights, Weights]
    """The format of the target's weights, and of the draft's."""
    draft_part: float = 1.0
    """The overhead of a pass of the draft over that of the target: it grows with the layers."""
    scales_outputs: bool = False
    """Whether the target's layers scale their outputs, so that each token of a step costs time."""
    waiting: Callable[[int, int, int, float], float] | None = None
    """(context, batch, tokens of each request, seconds that a byte takes) → seconds that verification waits for kernels
    in addition to its bytes; None where nothing is known of them."""

    def predict(self, asked: Cells) -> tuple[Predicted, ...]:
        """Return every requested cell."""
        ks = [k for k in asked.ks if k == 0 or self.method != NONE]
        cells = itertools.product(asked.contexts, asked.concurrencies, ks)
        return tuple(self._cell(k, batch, context, asked) for context, batch, k in cells)

    def _cell(self, k: int, batch: int, context: int, asked: Cells) -> Predicted:
        most, draft = self.read(context, batch, k + 1)
        least = self.read(context, batch, 1)[0]  # where drafted tokens need the experts of the verified one
        passes = min(k, 1) if self.method in BLOCKS else k
        step = self._step(round(math.sqrt(least * most)), draft, passes)
        if k and self.waiting is not None:
            byte_s = 1 / self.bandwidth / law_of(self.family, self.weights[0]).share
            waits = self.waiting(context, batch, k + 1, byte_s)
            deviation = math.hypot(step.deviation * step.seconds, _WAITING * waits) / (step.seconds + waits)
            step = StepTime(step.seconds + waits, deviation)
        step = self._launched(step, requests=batch, k=k)
        # how many experts the drafted tokens share is not known: half of the range is a deviation of its own
        deviation = math.hypot(step.deviation, math.log(most / least) / 2 / QUANTILE)
        return Predicted(
            method=self.method if k else NONE,
            k=k,
            concurrency=batch,
            context=context,
            curve=curve((), k=k, context=context, known=asked.conditional),
            step=StepTime(step.seconds, deviation),
            setting=self.setting,
            measured=False,
            answer_tokens=asked.answer_tokens or ANSWER,
        )

    def _launched(self, step: StepTime, *, requests: int, k: int) -> StepTime:
        """Return a step with what its tokens and its drafting cost in addition to the bytes."""
        more = launches(
            family=self.family,
            scales_outputs=self.scales_outputs,
            bandwidth=self.bandwidth,
            requests=requests,
            k=k,
        )
        deviation = math.hypot(step.deviation * step.seconds, DEVIATION * more) / (step.seconds + more)
        return StepTime(step.seconds + more, deviation)

    def _step(self, target: int, draft: int, passes: int) -> StepTime:
        """Return the time of the target's pass and of those of the draft, one after the other."""
        law, of_draft = (law_of(self.family, weights) for weights in self.weights)
        first = law.seconds(target, self.bandwidth)
        if draft:
            others = passes * of_draft.seconds(draft, self.bandwidth, part=self.draft_part)
        else:
            others = 0.0
        whole = first + others
        return StepTime(whole, (first * law.deviation + others * of_draft.deviation) / whole)
