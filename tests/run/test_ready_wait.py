"""Waiting, with a hand-written engine: no server, no real time."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, PatchConflict, StartFailed, TimedOut
from gemmaspec.run.engine.http import NoAnswer
from gemmaspec.run.engine.server import EngineName, Server, State
from gemmaspec.run.ready.bounded import LogFollower
from gemmaspec.run.ready.first_request import Answer
from gemmaspec.run.ready.phases import Phase
from gemmaspec.run.ready.wait import Checks, Ready, wait_ready
from tests.support.fake_server import fake_server

LOGS = Path(__file__).parent.parent / "logs"
SERVER = Server(name="pair", folder=Path("/nonexistent"), port=1, model="tiny", speculates=True)
RUNNING, ABSENT = State(status="running"), State(status="absent")
LAUNCHER = ["gemmaspec: patching vllm 0.32.0 at /vllm", "gemmaspec: overlay ready in 4.2 ms, starting vllm"]
ANSWER = Answer(
    text="one two",
    reasoning="",
    finish_reason="stop",
    prompt_tokens=21,
    completion_tokens=30,
    seconds=0.5,
    drafts=10,
    draft_tokens=40,
    accepted_tokens=20,
    acceptance_length=3.0,
    tokens_per_second=60.0,
)


class Clock:
    """Time that passes only when somebody sleeps, and lets the threads run meanwhile."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        time.sleep(0.002)
        self.now += seconds


class FakeEngine:
    """An engine whose server does what a test says: a log, and a state for each look, the last one for ever."""

    name: ClassVar[EngineName] = "process"

    def __init__(self, log: Iterable[str], *states: State | Exception, tail: Sequence[str] = ()) -> None:
        self.log, self.states, self.tail = log, list(states), tail
        self.looks = 0
        self.shared = ""
        """Who else answers on the server's port."""
        self.told = threading.Event()
        """Set once the whole log has been taken."""

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        raise AssertionError("waiting starts nothing")

    def ensure_answers(self, server: Server) -> None:
        if self.shared:
            raise StartFailed(self.shared)

    def start(self, server: Server) -> None:
        raise AssertionError("waiting starts nothing")

    def stop(self, server: Server) -> bool:
        raise AssertionError("waiting stops nothing")

    def state(self, server: Server) -> State:
        found = self.states[min(self.looks, len(self.states) - 1)]
        self.looks += 1
        if isinstance(found, Exception):
            raise found
        return found

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        yield from self.log if follow else self.tail
        self.told.set()

    def report(self, server: Server) -> dict[str, Any] | None:
        return None


class Wait:
    """One wait of a test, and what was heard during it."""

    def __init__(self) -> None:
        self.phases: list[tuple[Phase, float]] = []
        self.lines: list[str] = []
        self.clock = Clock()
        self.asked = 0
        self.first_look_with_health = 3
        self.answer: Callable[[], Answer] = lambda: ANSWER

    def healthy(self, server: Server) -> bool:
        self.asked += 1
        if isinstance(self.engine.log, list):
            assert self.engine.told.wait(60)
        return self.asked >= self.first_look_with_health

    def probe(self, server: Server, *, timeout_s: float, api_key: str | None) -> Answer:
        return self.answer()

    def run(self, engine: FakeEngine, *, timeout_s: float = 600, engine_s: float = 5) -> Ready:
        self.engine = engine
        return wait_ready(
            engine,
            SERVER,
            timeout_s=timeout_s,
            on_phase=lambda phase, elapsed: self.phases.append((phase, elapsed)),
            on_line=self.lines.append,
            clock=self.clock,
            sleep=self.clock.sleep,
            checks=Checks(healthy=self.healthy, probe=self.probe, engine_s=engine_s, rest_s=2),
        )

    def error(self, engine: FakeEngine, **options: float) -> GemmaspecError:
        with pytest.raises(GemmaspecError) as caught:
            self.run(engine, **options)
        return caught.value


@pytest.fixture
def wait() -> Wait:
    return Wait()


def real(log: str) -> list[str]:
    """A real log behind the launcher's lines."""
    return [*LAUNCHER, *(LOGS / log).read_text().splitlines()]


def exited(code: int | None, **more: Any) -> State:
    return State(status="exited", exit_code=code, **more)


def raising(error: BaseException) -> Callable[[], Answer]:
    def answer() -> Answer:
        raise error

    return answer


def test_a_server_is_ready_when_it_has_answered_not_when_it_is_healthy(wait: Wait) -> None:
    def answer() -> Answer:
        assert wait.phases[-1][0] is Phase.WARMING_UP
        wait.clock.now += 2.5
        return ANSWER

    wait.answer = answer
    ready = wait.run(FakeEngine(real("vllm-0.32.0-ready.log"), RUNNING))
    assert ready.answer is ANSWER
    assert [phase for phase, _ in wait.phases] == [
        Phase.PATCHING,
        Phase.IMPORTING,
        Phase.LOADING_TARGET,
        Phase.LOADING_DRAFT,
        Phase.WARMING_UP,
        Phase.READY,
    ]
    assert [elapsed for _, elapsed in wait.phases] == sorted(elapsed for _, elapsed in wait.phases)
    assert wait.phases[-1][1] == ready.seconds >= 3.5
    assert Phase.READY not in ready.phases
    assert sum(ready.phases.values()) == pytest.approx(ready.seconds)


def test_every_line_is_passed_on_safe_to_print(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "correct-horse")
    wait.run(FakeEngine([*LAUNCHER, "the key is correct-horse\x1b[2J", "x" * 5000], RUNNING))
    assert wait.lines[2] == "the key is ***"
    assert all(line.isprintable() and len(line) <= 2000 for line in wait.lines)


def test_a_server_that_exits_ends_the_wait_at_once_with_cause_and_last_lines(wait: Wait) -> None:
    error = wait.error(FakeEngine(real("vllm-0.20.2-window-sizes.log"), RUNNING, exited(1)))
    assert isinstance(error, StartFailed)
    assert error.exit_code == 6
    assert error.message.startswith("pair stopped while ")
    assert "exit code 1" in error.message
    assert "All attention layers in the same KV cache group must have the same window size" in error.message
    assert "vLLM cannot put the target's and the draft's sliding windows" in error.message
    assert "kv-spec-uniform-valueerror" in str(error.hint)
    quoted = error.message.partition("the last lines of its log:\n")[2].splitlines()
    assert len(quoted) == 20
    assert wait.clock.now - 1000.0 < 2


def test_the_line_of_the_cause_is_quoted_even_when_it_is_far_above(wait: Wait) -> None:
    error = wait.error(FakeEngine(real("vllm-0.20.2-multimodal-guard.log"), exited(1)))
    above, _, last = error.message.partition("the last lines of its log:")
    assert "does not support multimodal models yet" in above
    assert "does not support multimodal models yet" not in last
    assert "draft-text-only" in str(error.hint)


def test_an_unknown_failure_shows_its_first_exception(wait: Wait) -> None:
    error = wait.error(FakeEngine([*LAUNCHER, "RuntimeError: the moon is full"], exited(1)))
    assert "the first error in its log:\n  RuntimeError: the moon is full" in error.message
    assert error.hint is None


def test_a_failure_of_the_environment_has_its_own_exit_code(wait: Wait) -> None:
    error = wait.error(FakeEngine([*LAUNCHER, "OSError: [Errno 98] Address already in use"], exited(1)))
    assert isinstance(error, StartFailed)
    assert error.exit_code == 4
    assert "serve.port" in str(error.hint)
    assert StartFailed.exit_code == 6


@pytest.mark.parametrize("code", [137, -9])
def test_a_killed_server_is_told_from_one_that_gave_up(wait: Wait, code: int) -> None:
    error = wait.error(FakeEngine(LAUNCHER, exited(code)))
    assert "SIGKILL" in error.message
    assert error.exit_code == 6


def test_a_launcher_killed_before_vllm_is_a_failed_start(wait: Wait) -> None:
    error = wait.error(FakeEngine(LAUNCHER[:1], exited(137)))
    assert "did not start vLLM" in error.message
    assert "SIGKILL" in error.message
    assert error.exit_code == 6


@pytest.mark.parametrize(
    "state",
    [
        State(status="restarting", exit_code=1, restarts=1),
        State(status="running", restarts=1),
        ABSENT,
    ],
)
def test_a_restart_or_a_vanished_server_is_a_failed_start(wait: Wait, state: State) -> None:
    error = wait.error(FakeEngine(LAUNCHER, RUNNING, state))
    assert isinstance(error, StartFailed)
    assert "restart" in error.message or "no longer exists" in error.message


def test_a_server_that_restarted_before_the_wait_may_still_be_ready(wait: Wait) -> None:
    assert wait.run(FakeEngine(LAUNCHER, State(status="running", restarts=2))).answer is ANSWER


CONFLICT = [
    LAUNCHER[0],
    "gemmaspec: patch draft-text-only: conflict",
    "gemmaspec:   expected |         self.supports_mm_inputs = False",
    "gemmaspec: draft-text-only does not fit vllm 0.32.0: vllm was not started",
]


@pytest.mark.parametrize(
    "state",
    [exited(5), State(status="restarting", exit_code=5, restarts=1), State(status="running", restarts=1)],
)
def test_a_refused_patch_is_a_conflict_in_the_launchers_own_words(wait: Wait, state: State) -> None:
    error = wait.error(FakeEngine(CONFLICT, RUNNING, state))
    assert isinstance(error, PatchConflict)
    assert error.exit_code == 5
    assert "expected |         self.supports_mm_inputs = False" in error.message
    assert Phase.IMPORTING not in [phase for phase, _ in wait.phases]


def test_exit_code_5_of_vllm_itself_is_no_conflict(wait: Wait) -> None:
    assert wait.error(FakeEngine(LAUNCHER, exited(5))).exit_code == 6


@pytest.mark.parametrize(("code", "expected"), [(2, 6), (4, 4), (6, 6)])
def test_a_launcher_that_gives_up_is_quoted(wait: Wait, code: int, expected: int) -> None:
    error = wait.error(FakeEngine(["gemmaspec: there is no vllm here"], exited(code)))
    assert isinstance(error, StartFailed)
    assert error.exit_code == expected
    assert "there is no vllm here" in error.message


@pytest.mark.parametrize(
    ("lines", "phase"),
    [([], "patching"), (LAUNCHER, "importing"), (real("vllm-0.32.0-ready.log"), "warming up")],
)
def test_a_timeout_names_the_phase(wait: Wait, lines: list[str], phase: str) -> None:
    wait.first_look_with_health = 10_000
    error = wait.error(FakeEngine(lines, RUNNING), timeout_s=60)
    assert isinstance(error, TimedOut)
    assert f"still {phase}" in error.message
    assert "60 s" in error.message
    assert 60 <= wait.clock.now - 1000.0 < 62


def test_a_first_answer_that_does_not_come_in_time_is_a_timeout_too(wait: Wait) -> None:
    wait.answer = raising(TimedOut("/v1/chat/completions did not answer within 598 s"))
    error = wait.error(FakeEngine(LAUNCHER, RUNNING))
    assert isinstance(error, TimedOut)
    assert "warming up" in error.message


FIRST_REQUEST = [
    *LAUNCHER,
    "(EngineCore pid=1) ERROR 11-20 18:02:28 [core.py:1] RuntimeError: The size of tensor a (33) must match the "
    "size of tensor b (34) at non-singleton dimension 0",
]


def test_a_server_that_dies_of_its_first_request_is_a_failed_start_that_says_so(wait: Wait) -> None:
    wait.answer = raising(NoAnswer("the request failed inside the server (HTTP 500)"))
    dying = [RUNNING] * 12
    error = wait.error(FakeEngine(FIRST_REQUEST, *dying, exited(0)))
    assert "was healthy but died during its first request (it exited, exit code 0)" in error.message
    assert "draft-text-only" in str(error.hint)
    assert error.exit_code == 6


def test_a_server_that_fails_its_first_request_and_lingers_is_a_failed_start(wait: Wait) -> None:
    wait.answer = raising(NoAnswer("the request failed inside the server (HTTP 500)"))
    error = wait.error(FakeEngine(FIRST_REQUEST, RUNNING))
    assert "failed its first request: the request failed inside the server (HTTP 500)" in error.message
    assert "draft-text-only" in str(error.hint)


def test_a_wrong_first_answer_is_a_failed_start_without_a_wait(wait: Wait) -> None:
    wait.answer = raising(StartFailed("the server answers but does not draft", hint="do this"))
    error = wait.error(FakeEngine(LAUNCHER, RUNNING))
    assert "pair is not ready: the server answers but does not draft" in error.message
    assert error.hint == "do this"
    assert wait.clock.now - 1000.0 < 3


def forever(lines: Iterable[str]) -> Iterator[str]:
    """A log that never ends, and says nothing more."""
    yield from lines
    threading.Event().wait(60)


def test_a_log_that_hangs_does_not_hang_the_wait(wait: Wait) -> None:
    assert wait.run(FakeEngine(forever(LAUNCHER), RUNNING)).answer is ANSWER
    failed = Wait()
    began = time.monotonic()
    assert "exit code 1" in failed.error(FakeEngine(forever(LAUNCHER), exited(1))).message
    assert time.monotonic() - began < 50


def broken(lines: Iterable[str]) -> Iterator[str]:
    """A log whose connection is lost."""
    yield from lines
    raise ConnectionError("lost")


def test_a_log_that_breaks_off_does_not_end_the_wait(wait: Wait) -> None:
    assert wait.run(FakeEngine(broken(LAUNCHER), RUNNING)).answer is ANSWER
    error = Wait().error(FakeEngine(broken([]), exited(1), tail=["ValueError: told by the tail"]))
    assert "told by the tail" in error.message


def test_a_flood_of_log_does_not_hold_up_the_wait(wait: Wait) -> None:
    def flood() -> Iterator[str]:
        while True:
            yield "x" * 100

    wait.first_look_with_health = 10_000
    assert isinstance(wait.error(FakeEngine(flood(), RUNNING), timeout_s=1), TimedOut)


def test_an_engine_that_is_silent_for_a_moment_is_forgiven(wait: Wait) -> None:
    silent = [EnvironmentMissing("docker does not answer")] * 10
    wait.first_look_with_health = 14
    assert wait.run(FakeEngine(LAUNCHER, RUNNING, *silent, RUNNING)).answer is ANSWER


def test_an_engine_that_stays_silent_ends_the_wait(wait: Wait) -> None:
    wait.first_look_with_health = 10_000
    error = wait.error(FakeEngine(LAUNCHER, RUNNING, EnvironmentMissing("docker does not answer")))
    assert isinstance(error, EnvironmentMissing)
    assert error.message == "docker does not answer"
    assert 30 <= wait.clock.now - 1000.0 < 35


def test_an_engine_that_hangs_does_not_hang_the_wait(wait: Wait) -> None:
    engine = FakeEngine(LAUNCHER, RUNNING)
    engine.state = lambda server: threading.Event().wait(60) and RUNNING  # type: ignore[method-assign,assignment]
    wait.first_look_with_health = 10_000
    error = wait.error(engine, engine_s=0.01)
    assert isinstance(error, EnvironmentMissing)
    assert "the process engine did not answer" in error.message


@pytest.mark.parametrize("where", ["sleep", "probe"])
def test_ctrl_c_goes_straight_to_the_caller(wait: Wait, where: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if where == "sleep":
        wait.clock.sleep = interrupt  # type: ignore[method-assign]
    wait.answer = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        wait.run(FakeEngine(forever(LAUNCHER), RUNNING))


def test_a_log_is_closed_after_an_interrupt_at_any_call_of_its_reading() -> None:
    """CPython looks for signals after each call, so also just after one that has taken a lock."""
    for place in itertools.count(1):
        engine, left = FakeEngine(["a line", "another"]), [place]
        log = LogFollower(engine, SERVER)
        assert engine.told.wait(60)

        def after_call(_: object, event: str, __: object, left: list[int] = left) -> None:
            left[0] -= event in ("return", "c_return")
            if not left[0]:
                raise KeyboardInterrupt

        def read_and_close(log: LogFollower = log, after_call: Any = after_call) -> None:
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    sys.setprofile(after_call)
                    log.read()
                finally:
                    sys.setprofile(None)
                    log.close()

        reader = threading.Thread(target=read_and_close, daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive(), f"it waits for ever after an interrupt at call {place}"
        if left[0] > 0:
            return


def test_no_thread_is_left_once_the_log_goes_on(wait: Wait) -> None:
    more = threading.Event()

    def log() -> Iterator[str]:
        yield from LAUNCHER
        assert more.wait(60)
        yield "and on"
        threading.Event().wait(60)

    before = set(threading.enumerate())
    wait.run(FakeEngine(log(), RUNNING))
    more.set()
    for _ in range(6000):
        if set(threading.enumerate()) <= before:
            return
        time.sleep(0.01)
    pytest.fail("the thread that follows the log is still there")


def test_the_real_checks_ask_over_http() -> None:
    with fake_server() as vllm:
        phases: list[Phase] = []
        ready = wait_ready(
            FakeEngine(LAUNCHER, RUNNING),
            vllm.server(),
            timeout_s=20,
            on_phase=lambda phase, _: phases.append(phase),
        )
        assert ready.answer.draft_tokens == 40
        assert phases[-1] is Phase.READY
        vllm.hang_up = True
        with pytest.raises(StartFailed, match="died during its first request"):
            wait_ready(
                FakeEngine(FIRST_REQUEST, RUNNING, RUNNING, exited(1)),
                vllm.server(),
                timeout_s=20,
                on_phase=lambda *_: None,
            )


def test_an_answer_of_another_server_is_not_ready() -> None:
    engine = FakeEngine(LAUNCHER, RUNNING)
    engine.shared = "python (pid 7) also listens on port 8000 of 127.0.0.1"
    with pytest.raises(StartFailed, match=r"is not ready: python \(pid 7\) also listens on port 8000"):
        Wait().run(engine)
