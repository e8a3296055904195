"""The time of a step from its bytes alone: the last resort without similar measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gemmaspec.predict.acceptance import curve
from gemmaspec.predict.predict import Asked, Predicted
from gemmaspec.predict.rows import NONE, Setting
from gemmaspec.predict.steps import PARALLEL, StepTime

REACHED: Final = 0.55
"""Share of the memory's bandwidth that a served step reaches.

A 31B target in NVFP4, some 20 GB, reached 0.43 of an H200 without speculation (92.5 tokens/s, vLLM 0.26.0), and the
9.02 tokens/s that are published for it on a DGX Spark are 0.7 of that machine's 273 GB/s."""
DEVIATION: Final = 0.3
"""Relative standard deviation of that share."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The bytes of a step over the memory bandwidth."""

    bandwidth: float
    """Bytes per second."""
    read: Callable[[int, int, int], tuple[int, int]]
    """(context, batch, tokens of each request) → bytes that the target reads, and one pass of the draft."""
    method: str
    setting: Setting

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
        seconds = (target + passes * draft) / self.bandwidth / REACHED
        return Predicted(
            method=self.method if k else NONE,
            k=k,
            concurrency=batch,
            context=context,
            curve=curve((), k=k, context=context, known=asked.conditional),
            step=StepTime(seconds, DEVIATION),
            setting=self.setting,
            measured=False,
        )
