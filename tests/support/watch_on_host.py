"""What the watch on the host does for a real server as a process: a draft dies, the engine hangs, the engine is killed.

The draft dies by a hook that only this server has: a sitecustomize on its PYTHONPATH that sets the draft's weights to
zero once a file exists.
"""

from __future__ import annotations

import re
import signal
import sys
import time

import httpx
import psutil

from gemmaspec.run.engine import record
from tests.support.docker_support import wait_for
from tests.support.real import PROFILE, STATE, gemmaspec
from tests.support.streamed import QUESTIONS, TOKENS, URL, Streamed, stream
from tests.support.watched import CLIENTS, HANG_S, PATIENCE_S, SPOILER, WINDOW_S, Load, Watching, clients

HOOK = STATE / "host-hook"
"""Where the server finds its hook, and what tells it to act."""
NOTICED: dict[str, float] = {}
"""Seconds from each fault to the line that names it; shown at the end (pytest -s)."""


def settings() -> str:
    """What the run's profile says besides: the hook, and a watch that is quick."""
    HOOK.mkdir(exist_ok=True)
    (HOOK / "sitecustomize.py").write_text(SPOILER)
    return (
        f"serve: {{max_num_seqs: {CLIENTS}}}\n"
        f"watch: {{on_dead_draft: off, window_seconds: {WINDOW_S}, hang_seconds: {HANG_S}}}\n"
        f"env: {{PYTHONPATH: {HOOK}, GEMMASPEC_TEST_SPOIL: {HOOK / 'spoil'}}}\n"
    )


def watching() -> Watching:
    return Watching([sys.executable, "-m", "gemmaspec", "watch", PROFILE, "--interval", "0.5", "--json"])


def core() -> psutil.Process:
    """The process in which vLLM's engine runs."""
    found = record.read(STATE / "stacks" / PROFILE / "run")
    assert found
    assert found.pid
    children = psutil.Process(found.pid).children(recursive=True)
    return next(one for one in children if "EngineCore" in " ".join([one.name(), *one.cmdline()]))


def whole(answers: list[tuple[str, Streamed]], alone: dict[str, Streamed]) -> None:
    """No request was lost, and speculation did not change a word."""
    assert len(answers) >= CLIENTS
    assert {(one.tokens, one.finish) for _, one in answers} == {(TOKENS, "length")}
    assert [(question, one.text) for question, one in answers if one.text != alone[question].text] == []


def switches_a_dead_draft_off_and_no_request_is_lost(watch: Watching) -> None:
    alone = {question: stream(question) for question in QUESTIONS}
    with clients(CLIENTS) as loaded:
        watch.until_it_looked()
        loaded.all_answered()
        (HOOK / "spoil").touch()
        spoiled = time.monotonic()
        at, line = watch.until("begins", "dead draft")
        NOTICED["dead draft"] = at - spoiled
        assert " 0 tokens accepted of" in f" {line['reason']}"
    off, _ = watch.until("off")
    NOTICED["restarted without speculation"] = off - spoiled
    whole(loaded.answers, alone)
    assert status() == ("ready", None)
    assert stream(QUESTIONS[0]) == alone[QUESTIONS[0]]
    (found,) = gemmaspec("status", PROFILE, "--json").json["stacks"]
    assert (found["speculation"] or {"drafts": 0})["drafts"] == 0, "nothing is drafted any more"


def stop_while_it_answers(loaded: Load) -> None:
    """Stop the engine while vLLM counts requests as running: a stop between two answers is taken back."""

    def stopped() -> bool:
        engine.send_signal(signal.SIGSTOP)
        if running():
            return True
        engine.send_signal(signal.SIGCONT)
        return False

    engine = core()
    loaded.all_answered()
    wait_for(stopped, seconds=PATIENCE_S)


def status() -> tuple[str, str | None]:
    """What `status` says of the server, and why."""
    (found,) = gemmaspec("status", PROFILE, "--json").json["stacks"]
    return found["state"], found["why"]


def running() -> float:
    """The requests that vLLM says it runs."""
    said = httpx.get(f"{URL}/metrics", timeout=60, trust_env=False).text
    (found,) = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", said, re.MULTILINE)
    return float(found)


def names_an_engine_that_hangs_between_two_requests(watch: Watching) -> None:
    """Its gauges say that nothing runs, and go on to say so: only a question of the watch finds out."""
    core().send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        at, line = watch.until("begins", "hangs")
        NOTICED["hangs while idle"] = at - began
    finally:
        core().send_signal(signal.SIGCONT)
    assert line["reason"].startswith("a question of the watch waits")
    watch.until("ends", "hangs")


def names_an_engine_that_hangs_under_load_and_loses_nothing(watch: Watching) -> None:
    watch.until_it_looked()
    with clients(CLIENTS) as loaded:
        stop_while_it_answers(loaded)
        began = time.monotonic()
        try:
            at, _ = watch.until("begins", "hangs")
            NOTICED["hangs"] = at - began
            wait_for(lambda: str(status()[1]).endswith("as watch has found"), seconds=PATIENCE_S)
            assert status()[0] == "unknown"
        finally:
            core().send_signal(signal.SIGCONT)
        watch.until("ends", "hangs")
    assert {one.tokens for _, one in loaded.answers} == {TOKENS}


def names_an_engine_that_is_killed_under_load(watch: Watching) -> None:
    watch.until_it_looked()
    with clients(CLIENTS, lost=CLIENTS) as loaded:
        loaded.all_answered()
        core().kill()
        began = time.monotonic()
        silent, _ = watch.until("unreachable")
        at, line = watch.until("begins", "gone")
        NOTICED["unreachable"], NOTICED["gone"] = silent - began, at - began
        assert "the server has exited" in line["reason"]


def show_noticed() -> None:
    sys.stderr.write(f"noticed after { ({what: round(seconds, 1) for what, seconds in NOTICED.items()}) }\n")
