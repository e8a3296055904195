"""The phases of a start, read from the server's own log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gemmaspec.run.ready.logline import message_of


class Phase(StrEnum):
    """The phases of a start, in order."""

    PATCHING = "patching"
    IMPORTING = "importing"
    LOADING_TARGET = "loading target"
    LOADING_DRAFT = "loading draft"
    COMPILING = "compiling"
    CAPTURING = "capturing graphs"
    WARMING_UP = "warming up"
    READY = "ready"


ORDER: Final = {phase: index for index, phase in enumerate(Phase)}


@dataclass(frozen=True)
class Mark:
    """A log line that begins a phase."""

    phase: Phase
    pattern: re.Pattern[str]
    """Matches at the beginning of the message."""
    source: str
    """The source file that prints it; files of vLLM are relative to `vllm/`."""
    releases: str
    """Releases of vLLM that print it."""


_ROWS: Final = json.loads(Path(__file__).with_name("phases.json").read_text(encoding="utf-8"))
MARKS: Final = tuple(Mark(Phase(phase), re.compile(text), *words) for phase, text, *words in _ROWS)
"""Every line that begins a phase. None begins READY: only an answer does (wait.py)."""

_TARGET_IS_LOADED: Final = re.compile(r"Loading weights took \d")
"""model_executor/model_loader/default_loader.py, every release. vLLM's second model runner says nothing
when it goes on to load the draft; the first one says so one line later."""
_COMPILES: Final = re.compile(r"Initializing a V1 LLM engine \(v.{1,1800}\benforce_eager=False\b")
_MODELS_ARE_LOADED: Final = re.compile(r"Model loading took \d")
"""Both of vLLM's model runners, every release. A start that compiles goes on to trace the model, and up to 0.31
says nothing until that is over: 16 and 24 s for a 31B on an H200 with 0.26.0."""


def phase_of(line: str) -> Phase | None:
    """Return the phase that a log line begins; None for most lines."""
    message = message_of(line)
    return next((mark.phase for mark in MARKS if mark.pattern.match(message)), None)


class PhaseTracker:
    """The current phase of a start, and the duration of each by `clock` (seconds). Phases never go backwards."""

    def __init__(self, clock: Callable[[], float], *, speculates: bool) -> None:
        self._clock = clock
        self._speculates = speculates
        self._compiles = False
        self._entered = {Phase.PATCHING: clock()}
        self.phase = Phase.PATCHING

    def feed(self, line: str) -> Phase | None:
        """Return the phase that begins with this line, if any."""
        message = message_of(line)
        self._compiles = self._compiles or bool(_COMPILES.match(message))
        phase = phase_of(line) or self._implied(message)
        if phase:
            return self.enter(phase)
        return None

    def _implied(self, message: str) -> Phase | None:
        """Return the phase that a line begins in this start but not in every start."""
        if self._speculates and self.phase is Phase.LOADING_TARGET and _TARGET_IS_LOADED.match(message):
            return Phase.LOADING_DRAFT
        if self._compiles and _MODELS_ARE_LOADED.match(message):
            return Phase.COMPILING
        return None

    def enter(self, phase: Phase) -> Phase | None:
        """Enter a phase and return it; None if the start has already reached it."""
        if ORDER[phase] <= ORDER[self.phase]:
            return None
        self.phase = phase
        self._entered[phase] = self._clock()
        return phase

    def durations(self) -> Mapping[Phase, float]:
        """Return the seconds spent in each phase so far, in order, including the current one."""
        ends = [*list(self._entered.values())[1:], self._clock()]
        return {phase: end - begin for (phase, begin), end in zip(self._entered.items(), ends, strict=True)}
