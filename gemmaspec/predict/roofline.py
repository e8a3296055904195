"""The time of a step from its bytes alone: the last resort without similar measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmaspec.predict.acceptance import curve
from gemmaspec.predict.efficiency import Weights, share_of
from gemmaspec.predict.predict import ANSWER, Asked, Predicted
from gemmaspec.predict.steps import PARALLEL, StepTime
from gemmaspec.rows import NONE, Setting


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

    def predict(self, asked: Asked) -> tuple[Predicted, ...]:
        """Return every requested cell."""
        return tuple(
            self._cell(k, batch, context, asked)
            for context in asked.contexts
            for batch in asked.concurrencies
            for k in asked.ks
            if k == 0 or self.method != NONE
        )

    def _cell(self, k: int, batch: int, context: int, asked: Asked) -> Predicted:
        target, draft = self.read(context, batch, k + 1)
        passes = min(k, 1) if self.method in PARALLEL else k
        return Predicted(
            method=self.method if k else NONE,
            k=k,
            concurrency=batch,
            context=context,
            curve=curve((), k=k, context=context, known=asked.conditional),
            step=self._step([(target, self.weights[0]), *[(draft, self.weights[1])] * passes]),
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
