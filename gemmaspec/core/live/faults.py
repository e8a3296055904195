"""Faults that a server's counters show: a series of samples in, faults that begin and end out.

The rules avoid false alarms: they ignore the first window after a start and a server without requests, and a window
stays open until it has enough drafts. A restart of the server resets them. A fault ends after two good windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gemmaspec.core.live.reference import Reference, slower
from gemmaspec.core.live.sample import TTFT, Sample
from gemmaspec.core.live.window import Window, restarted, window

ENOUGH_DRAFTS: Final = 200
"""A window with fewer stays open: a slow or rarely used server is judged later, not never."""
DEAD_BELOW: Final = 0.05
"""Accepted tokens per draft. Even a poor draft gets one token in five accepted."""
STOPPED_BELOW: Final = 0.01
"""Drafts per token, where each step drafts: with 15 drafted tokens, all accepted, there is one in 16."""
ENOUGH_TOKENS: Final = 1000
"""A window without drafts stays open until it has so many."""
BAD_WINDOWS: Final = 2
GOOD_WINDOWS: Final = 2
IDLE_POWER_W: Final = 30.0
"""A GB10 that works draws about 45 W, and reports 95 % utilization either way."""
DEEP: Final = 5
"""Positions from here on fail together when a draft's sliding window is run as full attention."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long the rules look before they speak, in seconds."""

    window_s: float = 30.0
    hang_s: float = 60.0
    hang_without_power_s: float = 300.0
    """Where the GPU's power is unknown, a long prefill looks like a hang for longer."""
    loop_s: float = 600.0
    """Restarts within this time are a loop, and as long without one ends it."""
    loop_restarts: int = 3

    def patience(self, power_w: float | None) -> float:
        """Return after how many seconds without a token a server hangs; `power_w`: the GPU's draw, None if unknown."""
        if power_w is not None:
            return self.hang_s
        return self.hang_without_power_s


def limits_of(*, window_s: float, hang_s: float | None) -> Limits:
    """Return the limits of a profile or of options; without `hang_s`, a hang takes as long as by default."""
    if hang_s is None:
        return Limits(window_s=window_s)
    return Limits(window_s=window_s, hang_s=hang_s, hang_without_power_s=hang_s)


class FaultKind(str, Enum):  # noqa: UP042 - the Python of an image may be 3.10, which has no StrEnum
    """What can be wrong with a server that still answers /health."""

    DEAD_DRAFT = "dead draft"
    CUT_DRAFT = "draft cut off"
    SLOWER = "slower than off"
    HANGS = "hangs"
    RESTARTS = "restart loop"
    REPLACED = "patch replaced"
    """A process runs something else than the patched functions, or does not say; no counter shows it."""
    GRAPHS = "no graphs"
    """It drafts without CUDA graphs, more slowly than without a draft. Its log says so."""
    GONE = "gone"
    """It has exited. Counters cannot say so: who looks at its process does."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Event:
    """A fault that begins or ends."""

    kind: FaultKind
    begins: bool
    reason: str


@dataclass(kw_only=True)
class _Run:
    """Consecutive windows that agree with a fault, or that do not."""

    bad: int = 0
    good: int = 0
    active: bool = False


@dataclass(kw_only=True)
class Faults:
    """The faults of one server. Feed it every sample, with the GPU's power if it is known."""

    limits: Limits = field(default_factory=Limits)
    reference: Reference | None = None
    """What steps of this server take with and without speculation; without, nothing is called slower than off."""
    drafts_always: bool = False
    """Whether it drafts in every step, be the text or the load what it may: then tokens without drafts are a fault."""
    _last: Sample | None = None
    _edge: Sample | None = None
    """Where the current window begins."""
    _tokens_edge: Sample | None = None
    """Where the current window of tokens begins, which closes whether or not anything is drafted."""
    _first: bool = True
    _runs: dict[FaultKind, _Run] = field(default_factory=lambda: {kind: _Run() for kind in FaultKind})
    _progress: float = 0.0
    """When a sample had last made a token, read a prompt, or had nothing to do."""
    _token: float = 0.0
    """When a sample had last made a token or read a prompt."""
    _restarts: list[float] = field(default_factory=list)
    starts: int = 0
    """How many starts of the server were seen."""

    @property
    def active(self) -> tuple[FaultKind, ...]:
        """Return the faults that have begun and not ended."""
        return tuple(kind for kind, run in self._runs.items() if run.active)

    def add(self, sample: Sample, *, power_w: float | None = None, asked: bool = False) -> list[Event]:
        """Return the faults that begin or end with this sample.

        `asked` says that a question of the watch itself waits for its answer; see `silent`.
        """
        last = self._last
        if last is None or restarted(last, sample):
            return self._anew(sample, again=last is not None)
        events = [*self._looped(sample), *self._hang(last, sample, power_w, asked)]
        self._last = sample
        assert self._edge
        enough = self._first or sample.drafts - self._edge.drafts >= ENOUGH_DRAFTS
        if enough and sample.at - self._edge.at >= self.limits.window_s:
            events += self._close(self._edge, sample)
            self._edge = sample
        if self.drafts_always and sample.counts_drafts:
            events += self._stopped(sample)
        return events

    def silent(self, *, power_w: float | None = None) -> bool:
        """Return whether only a question can tell whether the server is idle or hangs.

        The engine sends its gauges with each step (v1/metrics/loggers.py, every release). One that hangs between two
        requests therefore reports no request for ever, however many wait for it.
        """
        return self._last is not None and self._last.at - self._token >= self.limits.patience(power_w)

    def gone(self, reason: str) -> list[Event]:
        """Return that the server has exited, once; its next sample ends that."""
        run = self._runs[FaultKind.GONE]
        if run.active:
            return []
        run.active = True
        return [Event(kind=FaultKind.GONE, begins=True, reason=reason)]

    def judged(self, kind: FaultKind, problem: str, *, over: str) -> list[Event]:
        """Return that a fault which no counter shows begins, or is over; `problem` is "" without it."""
        run = self._runs[kind]
        if run.active == bool(problem):
            return []
        run.active = bool(problem)
        return [Event(kind=kind, begins=run.active, reason=problem or over)]

    def _anew(self, sample: Sample, *, again: bool) -> list[Event]:
        kept = self._runs[FaultKind.RESTARTS]
        ended = []
        for kind in self.active:
            if kind is not FaultKind.RESTARTS:
                ended.append(Event(kind=kind, begins=False, reason="the server was restarted"))
        self.starts += 1
        self._last, self._edge, self._tokens_edge, self._first = sample, sample, sample, True
        self._progress = self._token = sample.at
        self._runs = {kind: _Run() for kind in FaultKind} | {FaultKind.RESTARTS: kept}
        if again:
            self._restarts.append(sample.at)
        return [*ended, *self._looped(sample)]

    def _looped(self, now: Sample) -> list[Event]:
        """Judge the restarts that somebody else does, such as Docker's restart policy."""
        limits, run = self.limits, self._runs[FaultKind.RESTARTS]
        self._restarts = [restart for restart in self._restarts if now.at - restart < limits.loop_s]
        if not run.active and len(self._restarts) >= limits.loop_restarts:
            run.active = True
            minutes = limits.loop_s / 60
            count = f"{len(self._restarts)} restarts within {minutes:.0f} min"
            return [Event(kind=FaultKind.RESTARTS, begins=True, reason=count)]
        if run.active and not self._restarts:
            run.active = False
            count = f"no restart for {limits.loop_s / 60:.0f} min"
            return [Event(kind=FaultKind.RESTARTS, begins=False, reason=count)]
        return []

    def _close(self, before: Sample, now: Sample) -> list[Event]:
        """Return the faults that a complete window of drafting begins or ends."""
        first, self._first = self._first, False
        between = window(before, now)
        if first or between is None:
            return []
        return [
            *self._count(FaultKind.DEAD_DRAFT, _dead(between)),
            *self._count(FaultKind.CUT_DRAFT, _cut(between)),
            *self._slower(between, (before.running + now.running) / 2),
        ]

    def _stopped(self, now: Sample) -> list[Event]:
        """Judge a window with enough tokens of a server that drafts in every step; one that drafts is not judged."""
        before = self._tokens_edge
        assert before
        tokens, seconds = _decoded(now) - _decoded(before), now.at - before.at
        if tokens < ENOUGH_TOKENS or seconds < self.limits.window_s:
            return []
        self._tokens_edge = now
        drafts = now.drafts - before.drafts
        if drafts >= STOPPED_BELOW * tokens:
            return []
        reason = f"{drafts:.0f} drafts for {tokens:.0f} tokens in {seconds:.0f} s: it drafts no longer"
        return self._count(FaultKind.DEAD_DRAFT, reason)

    def _slower(self, window: Window, running: float) -> list[Event]:
        """Judge the speed, where it is known what it would be without speculation."""
        if self.reference:
            gain = self.reference.gain(window, running)
        else:
            gain = None
        if gain:
            return self._count(FaultKind.SLOWER, slower(gain))
        return []

    def _count(self, kind: FaultKind, reason: str | None) -> list[Event]:
        run = self._runs[kind]
        if reason:
            run.bad, run.good = (run.bad + 1, 0)
        else:
            run.bad, run.good = (0, run.good + 1)
        if reason and not run.active and run.bad >= BAD_WINDOWS:
            run.active = True
            return [Event(kind=kind, begins=True, reason=reason)]
        if run.active and run.good >= GOOD_WINDOWS:
            run.active = False
            return [Event(kind=kind, begins=False, reason=f"{GOOD_WINDOWS} good windows")]
        return []

    def _hang(self, last: Sample, now: Sample, power_w: float | None, asked: bool) -> list[Event]:
        run = self._runs[FaultKind.HANGS]
        grew = now.generation_tokens > last.generation_tokens or now.prompt_tokens > last.prompt_tokens
        idle = now.running == 0 and not asked
        works = power_w is not None and power_w >= IDLE_POWER_W
        if grew:
            self._token = now.at
        if grew or idle or works:
            self._progress = now.at
            if not (run.active and grew):
                return []
            run.active = False
            return [Event(kind=FaultKind.HANGS, begins=False, reason="the server generates tokens again")]
        still = now.at - self._progress
        if run.active or still < self.limits.patience(power_w):
            return []
        run.active = True
        if power_w is None:
            power = ""
        else:
            power = f"; the GPU draws {power_w:.0f} W"
        if now.running:
            who = f"{now.running:.0f} running requests"
        else:
            who = "a question of the watch waits"
        reason = f"{who}, but no token for {still:.0f} s{power}"
        return [Event(kind=FaultKind.HANGS, begins=True, reason=reason)]


def _dead(window: Window) -> str | None:
    accepted = window.accepted_per_second * window.seconds
    if accepted / window.drafts >= DEAD_BELOW:
        return None
    return f"{accepted:.0f} tokens accepted of {window.drafts} drafts in {window.seconds:.0f} s"


def _decoded(sample: Sample) -> float:
    """Return the tokens but for each answer's first one, which reading the prompt makes, and no draft."""
    times = sample.histograms.get(TTFT)
    if times is None or not times.counts:
        return sample.generation_tokens
    return sample.generation_tokens - times.counts[-1]


def _cut(window: Window) -> str | None:
    """Return why the draft is cut off: accepted at first, but never from some position on.

    With a k that follows the load, positions that the window's k does not reach are not accepted either.
    """
    shares, k = window.by_position, round(window.k or 0, 1)
    if min(len(shares) - 1, k) < DEEP or shares[0] < 0.5 or shares[DEEP - 2] < 0.05 or any(shares[DEEP - 1 :]):
        return None
    return f"position 1 is accepted in {shares[0]:.0%} of drafts and position {DEEP} and later never"
