"""The share of its memory's bandwidth that a machine reaches: data by family of GPUs and format of the weights."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.check.predict.curve import curve
from gemmaspec.check.predict.predict import ANSWER, QUANTILE, Cells, Predicted
from gemmaspec.check.predict.steps import StepTime
from gemmaspec.core import data
from gemmaspec.core.releases.drafting import BLOCKS
from gemmaspec.core.rows import NONE, Setting

Weights = Literal["4-bit", "8-bit", "16-bit"]
_NEAR: Final = 0.5
"""Sizes of steps whose logarithms differ by this are alike."""
_OTHER_WEIGHTS: Final = 0.15
"""What a server of the same family with other weights counts."""
_LEAST: Final = 0.08
"""Smallest relative standard deviation of a share."""
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


@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of the bandwidth that a step reaches."""

    value: float
    deviation: float
    """Relative standard deviation."""
    said: str
    """The servers that it was taken from."""


@functools.cache
def served() -> tuple[Served, ...]:
    """Return the servers of measurements/efficiency.jsonl."""
    lines = (data.MEASUREMENTS / "efficiency.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Served(**json.loads(line)) for line in lines)


def share_of(family: str | None, weights: Weights, nbytes: float) -> Share:
    """Return the share for steps of so many bytes, by the servers nearest in size.

    A family without a server gets the share of all others, three times as uncertain, and `said` says so.
    """
    of_family = [machine for machine in served() if machine.family == family]
    same = [machine for machine in of_family if machine.weights == weights]
    counted = [(machine, _alike(machine, weights, nbytes)) for machine in of_family or served()]
    total = sum(weight for _, weight in counted)
    mean = sum(math.log(machine.share) * weight for machine, weight in counted) / total
    variance = sum((math.log(machine.share) - mean) ** 2 * weight for machine, weight in counted) / total
    least = _LEAST if len(same) > 1 else _STRANGE["weights" if of_family else "family"]
    said = _said(family, weights, of_family, same)
    return Share(value=math.exp(mean), deviation=max(math.sqrt(variance), least), said=said)


def _alike(machine: Served, weights: Weights, nbytes: float) -> float:
    apart = math.log(machine.step_gb * 1e9 / max(nbytes, 1.0)) / _NEAR
    return max(math.exp(-(apart**2) / 2), 1e-3) * (1.0 if machine.weights == weights else _OTHER_WEIGHTS)


def _said(family: str | None, weights: Weights, of_family: list[Served], same: list[Served]) -> str:
    if same:
        return f"{len(same)} server{'s'[: len(same) > 1]} of this family of GPUs ({family}) with {weights} weights"
    if of_family:
        return f"{len(of_family)} servers of this family of GPUs ({family}) with other weights: none has {weights} ones"
    others = " and ".join(dict.fromkeys(machine.family for machine in served()))
    return f"servers of other families of GPUs ({others}): none is known of {family or 'this one'}"


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The bytes of a step over the memory bandwidth that servers reach. It says nothing of prompts."""

    bandwidth: float
    """Bytes per second of all GPUs."""
    read: Callable[[int, int, int], tuple[int, int]]
    """(context, batch, tokens of each request) → bytes that the target reads, and one pass of the draft."""
    method: str
    setting: Setting
    family: str | None
    """The family of the GPU."""
    weights: tuple[Weights, Weights]
    """The format of the target's weights, and of the draft's."""

    def predict(self, asked: Cells) -> tuple[Predicted, ...]:
        """Return every requested cell."""
        return tuple(
            self._cell(k, batch, context, asked)
            for context in asked.contexts
            for batch in asked.concurrencies
            for k in asked.ks
            if k == 0 or self.method != NONE
        )

    def _cell(self, k: int, batch: int, context: int, asked: Cells) -> Predicted:
        most, draft = self.read(context, batch, k + 1)
        least = self.read(context, batch, 1)[0]  # where drafted tokens need the experts of the verified one
        passes = min(k, 1) if self.method in BLOCKS else k
        step = self._step([(round(math.sqrt(least * most)), self.weights[0]), *[(draft, self.weights[1])] * passes])
        return Predicted(
            method=self.method if k else NONE,
            k=k,
            concurrency=batch,
            context=context,
            curve=curve((), k=k, context=context, known=asked.conditional),
            step=StepTime(step.seconds, math.hypot(step.deviation, math.log(most / least) / 2 / QUANTILE)),
            setting=self.setting,
            measured=False,
            answer_tokens=asked.answer_tokens or ANSWER,
        )

    def _step(self, passes: Sequence[tuple[int, Weights]]) -> StepTime:
        """Return the time of passes one after the other, each with the share of its size."""
        shares = [(nbytes, share_of(self.family, weights, nbytes)) for nbytes, weights in passes if nbytes]
        times = [(nbytes / self.bandwidth / share.value, share.deviation) for nbytes, share in shares]
        whole = sum(seconds for seconds, _ in times)
        return StepTime(whole, sum(seconds * deviation for seconds, deviation in times) / whole if whole else math.inf)
