"""Wait for a server until it has answered a real request, or has failed."""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed, TimedOut
from gemmaspec.run.engine.http import NoAnswer
from gemmaspec.run.engine.lines import split_host
from gemmaspec.run.engine.server import Engine, Server, State
from gemmaspec.run.ready.attested import ensure_attested
from gemmaspec.run.ready.bounded import LogFollower, bounded
from gemmaspec.run.ready.failed import Ended, explained, failed_start
from gemmaspec.run.ready.first_request import Answer, api_key_for, healthy, probe
from gemmaspec.run.ready.logline import printable
from gemmaspec.run.ready.phases import Phase, PhaseTracker

POLL_S: Final = 0.5
ENGINE_S: Final = 10.0
"""Seconds that one status request to the engine may take."""
LOST_S: Final = 30.0
"""Seconds for which the engine may fail before the wait gives up; a restart of its daemon takes less."""
REST_S: Final = 3.0
"""Seconds to wait for the end of a dead server's log."""
DYING_S: Final = 20.0
"""Seconds to wait for the exit of a server whose engine has died, because vLLM first shuts its processes down."""
KEPT_LINES: Final = 5000
_SECRETS: Final = ("VLLM_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A server that has answered."""

    answer: Answer
    phases: Mapping[Phase, float]
    """Seconds spent in each phase in the log, in order."""
    seconds: float
    """From the beginning of the wait to the answer."""


class Probe(Protocol):
    """Sends a healthy server its first request."""

    def __call__(self, server: Server, *, timeout_s: float, api_key: str | None) -> Answer: ...


MEMORY_HINT: Final = (
    "lower serve.gpu_memory_utilization or serve.max_model_len; watch.memory_guard=false turns this off"
)


class MemoryShort(EnvironmentMissing):
    """The machine is about to run out of the memory that its GPU shares; the caller kills the server at once."""


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The probe and the timeouts, which tests replace."""

    healthy: Callable[[Server], bool] = healthy
    probe: Probe = probe
    guard: Callable[[], str] | None = None
    """Returns why the server has to be ended before the machine runs out of memory; "" while it need not."""
    engine_s: float = ENGINE_S
    rest_s: float = REST_S


def wait_ready(
    engine: Engine,
    server: Server,
    *,
    timeout_s: float,
    on_phase: Callable[[Phase, float], None],
    on_line: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    checks: Checks | None = None,
    restarts: int | None = None,
) -> Ready:
    """Follow a start until the server has answered a real request and, if it speculates, has drafted for it.

    `on_phase` receives each phase as it begins, with the seconds since the wait began; `on_line` receives the
    log's lines, safe to print. `restarts`: restart count when the wait begins. 0 for a fresh start; default: the
    first count observed. /health only triggers the probe; it does not mean ready.
    Raises MemoryShort if the guard says so.
    Raises StartFailed as soon as the server exits, restarts or answers wrongly (with exit_code 4 if something outside
    the stack is missing), and if another server shares its port; PatchConflict if the launcher refused a patch,
    TimedOut with the phase, EnvironmentMissing if the engine itself is lost. Stops nothing; the caller does.
    """
    watch = _Watch(
        _engine=engine,
        _server=server,
        _timeout_s=timeout_s,
        _on_phase=on_phase,
        _on_line=on_line,
        _clock=clock,
        _sleep=sleep,
        _checks=checks or Checks(),
        _restarts=restarts,
    )
    try:
        return watch.run()
    finally:
        watch.close()


@dataclass(kw_only=True)
class _Watch:
    """One wait, with what it has seen so far."""

    _engine: Engine
    _server: Server
    _timeout_s: float
    _on_phase: Callable[[Phase, float], None]
    _on_line: Callable[[str], None] | None
    _clock: Callable[[], float]
    _sleep: Callable[[float], None]
    _checks: Checks
    _restarts: int | None

    def __post_init__(self) -> None:
        """Begin to follow the log."""
        self._began = self._clock()
        self._tracker = PhaseTracker(self._clock, speculates=self._server.speculates)
        if self._server.nodes:
            self._head = self._server.nodes[0].host
        else:
            self._head = ""
        self._logs: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT_LINES))
        self._secrets = [value for name in _SECRETS if len(value := os.environ.get(name, "")) >= 6]
        self._lost_since: float | None = None
        self._log = LogFollower(self._engine, self._server)

    def run(self) -> Ready:
        self._on_phase(self._tracker.phase, 0.0)
        while True:
            self._look()
            if self._checks.healthy(self._server):
                break
            self._sleep(POLL_S)
        self._read(self._log.read())
        self._enter(Phase.WARMING_UP)
        self._ensure_it_answers()
        answer = self._ask()
        self._ensure_it_answers()
        ensure_attested(self._engine, self._server, clock=self._clock, sleep=self._sleep)
        self._enter(Phase.READY)
        phases = dict(self._tracker.durations())
        del phases[Phase.READY]
        return Ready(answer=answer, phases=phases, seconds=self._elapsed())

    def close(self) -> None:
        self._log.close()

    def _look(self) -> None:
        """Read the log and check the server. Raises the error if the start has failed."""
        self._read(self._log.read())
        why = self._checks.guard() if self._checks.guard else ""
        if why:
            raise MemoryShort(
                f"{self._server.name} was ended while {self._tracker.phase}, before this machine freezes: {why}",
                hint=MEMORY_HINT,
            )
        if state := self._over():
            raise self._died(state)
        if self._elapsed() >= self._timeout_s:
            raise self._timed_out()

    def _read(self, lines: list[str]) -> None:
        for given in lines:
            if self._head:
                host, line = split_host(given)
            else:
                host, line = ("", given)
            self._logs[host].append(line)
            if self._on_line:
                self._on_line(printable(given, secrets=self._secrets))
            if host != self._head:
                continue
            if phase := self._tracker.feed(line):
                self._on_phase(phase, self._elapsed())

    def _enter(self, phase: Phase) -> None:
        if self._tracker.enter(phase):
            self._on_phase(phase, self._elapsed())

    def _over(self) -> State | None:
        """Return the server's state if it has exited or restarted; None while it runs or the engine does not answer."""
        try:
            state = bounded(
                lambda: self._engine.state(self._server),
                seconds=self._checks.engine_s,
                name=f"the {self._engine.name} engine",
            )
        except EnvironmentMissing:
            if self._lost_since is None:
                self._lost_since = self._clock()
            if self._clock() - self._lost_since >= LOST_S:
                raise
            return None
        self._lost_since = None
        if self._restarts is None:
            self._restarts = state.restarts
        if state.status == "running" and state.restarts <= self._restarts:
            return None
        return state

    def _ensure_it_answers(self) -> None:
        """Raise StartFailed unless the started server is alive and alone on its port."""
        if state := self._over():
            raise self._died(state, first_request=True)
        try:
            bounded(
                lambda: self._engine.ensure_answers(self._server),
                seconds=self._checks.engine_s,
                name=f"the {self._engine.name} engine",
            )
        except StartFailed as error:
            raise self._wrong(error) from None

    def _ask(self) -> Answer:
        left = max(1.0, self._timeout_s - self._elapsed())
        try:
            return self._checks.probe(self._server, timeout_s=left, api_key=api_key_for(self._server))
        except TimedOut:
            self._read(self._log.read())
            raise self._timed_out() from None
        except StartFailed as error:
            state = self._dying(DYING_S if isinstance(error, NoAnswer) else 0.0)
            if state:
                raise self._died(state, first_request=True) from None
            raise self._wrong(error) from None

    def _dying(self, seconds: float) -> State | None:
        """Return the state of a server that ends within `seconds`; None if it keeps running."""
        until = self._clock() + seconds
        while not (state := self._over()) and self._clock() < until:
            self._sleep(POLL_S)
        return state

    def _died(self, state: State, *, first_request: bool = False) -> GemmaspecError:
        self._read(self._log.read_rest(seconds=self._checks.rest_s))
        host = state.host or self._head
        if host:
            name = f"{self._server.name} on {host}"
        else:
            name = self._server.name
        ended = Ended(
            name=name,
            phase=self._tracker.phase,
            seconds=self._elapsed(),
            state=state,
            lines=tuple(self._logs[host]) or tuple(self._tail(host)),
            first_request=first_request,
        )
        return failed_start(ended, secrets=self._secrets)

    def _wrong(self, error: StartFailed) -> StartFailed:
        """Return the error for a server that keeps running, but whose first answer is missing or wrong."""
        if not isinstance(error, NoAnswer):
            return StartFailed(f"{self._server.name} is not ready: {error.message}", hint=error.hint)
        self._read(self._log.read())
        what = f"{self._server.name} was healthy but failed its first request: {error.message}"
        return explained(what, tuple(self._logs[self._head]), secrets=self._secrets)

    def _tail(self, host: str) -> list[str]:
        """Return the end of the log if following it gave nothing."""
        try:
            lines = bounded(
                lambda: list(self._engine.logs(self._server, tail=200)),
                seconds=self._checks.engine_s,
                name="the log",
            )
        except GemmaspecError:
            return []
        if not host:
            return lines
        return [line for of, line in map(split_host, lines) if of == host]

    def _timed_out(self) -> TimedOut:
        phase, here = self._tracker.phase, self._tracker.durations()[self._tracker.phase]
        return TimedOut(
            f"{self._server.name} was not ready within {self._timeout_s:.0f} s: still {phase}, "
            f"for {here:.0f} s now (--timeout allows more)"
        )

    def _elapsed(self) -> float:
        return self._clock() - self._began
