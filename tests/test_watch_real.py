"""A real vLLM that goes wrong while it serves, and how soon `watch` says so. All tests share one server, in this order.

The draft dies by a hook that only this test's server has: a sitecustomize on its PYTHONPATH that sets the draft's
weights to zero once a file exists.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from gemmaspec.engine import record
from gemmaspec.profile.load import load_profile
from gemmaspec.stack import watching
from tests.real import PORT, PROFILE, STATE, environment, gemmaspec, up
from tests.test_live_k_real import QUESTIONS, TOKENS, Streamed, stream

pytestmark = pytest.mark.real_process

CLIENTS = 16
WINDOW_S, HANG_S = 8, 3
PATIENCE_S = 240
"""For each fault: nothing of this is quick where other tests use the same cores."""
NOTICED: dict[str, float] = {}
"""Seconds from each fault to the line that names it; shown at the end (pytest -s)."""
SPOILER = '''
import importlib.abc, importlib.util, os, sys

class Spoiler(importlib.abc.MetaPathFinder):
    """Zeroes the weights of a draft model, once, when the file GEMMASPEC_TEST_SPOIL exists."""

    name = "vllm.v1.spec_decode.draft_model"

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            propose = module.DraftModelProposer.propose

            def spoiled(own, *args, **kwargs):
                if not hasattr(own, "spoiled") and os.path.exists(os.environ["GEMMASPEC_TEST_SPOIL"]):
                    own.spoiled = True
                    for weights in own.model.parameters():
                        weights.data.zero_()
                return propose(own, *args, **kwargs)

            module.DraftModelProposer.propose = spoiled

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Spoiler())
'''


class Watching:
    """A command that prints a JSON object on each line, with the moment at which each came."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
        )
        self.lines: queue.Queue[tuple[float, dict[str, Any]]] = queue.Queue()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), json.loads(line)))

    def until(self, what: str, fault: str | None = None) -> tuple[float, dict[str, Any]]:
        """Return the next line that says `what` of `fault`."""
        seen = []
        ends = time.monotonic() + PATIENCE_S
        while (left := ends - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                at, line = self.lines.get(timeout=left)
                seen.append(line)
                if (line["what"], line["fault"]) == (what, fault):
                    return at, line
        raise AssertionError(f"no line says {what} {fault}: {seen}")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        self.reading.join()
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the test's server finds its hook, and what tells it to act."""
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(SPOILER)
    return folder


@pytest.fixture(scope="module", autouse=True)
def server(place: Path) -> Iterator[None]:
    settings = {
        "speculative.live_k": "true", "serve.max_num_seqs": CLIENTS, "watch.on_dead_draft": "off", "watch.window_seconds": WINDOW_S,
        "watch.hang_seconds": HANG_S, "env.PYTHONPATH": place, "env.GEMMASPEC_TEST_SPOIL": place / "spoil",
        f"env.{watching.CONTROL_VARIABLE}": place / "k.json",
    }  # fmt: skip
    done = up("process", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
    assert done.code == 0, done.err
    assert done.json["answer"]["accepted_tokens"] > 0, "the draft is good until it is spoiled"
    yield
    gemmaspec("down", PROFILE)
    sys.stderr.write(f"noticed after { ({what: round(seconds, 1) for what, seconds in NOTICED.items()}) }\n")


@pytest.fixture(scope="module")
def watch(server: None) -> Iterator[Watching]:
    found = Watching([sys.executable, "-m", "gemmaspec", "watch", PROFILE, "--interval", "0.5", "--json"])
    yield found
    found.end()


@contextlib.contextmanager
def clients(count: int) -> Iterator[list[tuple[str, Streamed]]]:
    """Ask again and again, and yield the list of answers, complete at the end; a request that is lost raises there."""
    over, answers = threading.Event(), []

    def ask(question: str) -> None:
        while not over.is_set():
            answers.append((question, stream(question)))

    with ThreadPoolExecutor(count) as pool:
        asking = [pool.submit(ask, QUESTIONS[turn % len(QUESTIONS)]) for turn in range(count)]
        try:
            yield answers
        finally:
            over.set()
        for one in asking:
            one.result()


def live_k() -> int:
    found: int = gemmaspec("k", PROFILE, "--json").json["k"]
    return found


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


def test_a_draft_that_dies_is_switched_off_and_no_request_is_lost(place: Path, watch: Watching) -> None:
    alone = {question: stream(question) for question in QUESTIONS}
    with clients(CLIENTS) as answers:
        time.sleep(2 * WINDOW_S)  # the first window of a watch is not judged
        (place / "spoil").touch()
        spoiled = time.monotonic()
        at, line = watch.until("begins", "dead draft")
        NOTICED["dead draft"] = at - spoiled
        off, _ = watch.until("off")
        NOTICED["k is 0"] = off - spoiled
        assert " 0 tokens accepted of" in f" {line['reason']}"
        assert live_k() == 0
        time.sleep(2)
    whole(answers, alone)


def test_the_watch_of_a_container_sets_k_of_the_same_server(place: Path, watch: Watching, tmp_path: Path) -> None:
    """Its files, run as the container does, beside the same server: k=0 by its own file, confirmed by the counters."""
    watch.end()
    overrides = ("speculative.live_k=true", "watch.on_dead_draft=off", f"watch.window_seconds={WINDOW_S}")
    files = watching.watch_files(load_profile("tiny-cpu", overrides=overrides).profile, live_k=True)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    settings = json.loads(files[watching.SETTINGS]) | {"address": f"http://127.0.0.1:{PORT}"}
    (tmp_path / watching.SETTINGS).write_text(json.dumps(settings))
    folder = tmp_path / watching.FOLDER
    with clients(CLIENTS) as answers:
        assert gemmaspec("k", PROFILE, "auto").code == 0
        drafting = time.monotonic()
        beside = Watching([sys.executable, "-IB", str(folder), str(tmp_path / watching.SETTINGS), str(place)])
        at, _ = beside.until("begins", "dead draft")
        off, line = beside.until("off")
        beside.end()
        NOTICED["dead draft, by the container's watch"] = at - drafting
        NOTICED["k is 0, by the container's watch"] = off - drafting
        assert "tokens without drafts" in line["reason"]
        assert live_k() == 0
    assert {(one.tokens, one.finish) for _, one in answers} == {(TOKENS, "length")}


def asked(count: int, then: Callable[[list[Future[Streamed]]], None]) -> None:
    """Send requests, wait until they run, and go on."""
    with ThreadPoolExecutor(count) as pool:
        requests = [pool.submit(stream, QUESTIONS[turn % len(QUESTIONS)]) for turn in range(count)]
        time.sleep(0.5)
        then(requests)


def test_an_engine_that_hangs_and_one_that_is_killed_are_named() -> None:
    watch = Watching([sys.executable, "-m", "gemmaspec", "watch", PROFILE, "--interval", "0.5", "--json"])
    time.sleep(3)  # it has read the counters

    def stopped(requests: list[Future[Streamed]]) -> None:
        core().send_signal(signal.SIGSTOP)
        began = time.monotonic()
        try:
            at, _ = watch.until("begins", "hangs")
            NOTICED["hangs"] = at - began
            found = gemmaspec("status", PROFILE, "--json").json["stacks"][0]
        finally:
            core().send_signal(signal.SIGCONT)
        assert (found["state"], found["why"]) == (
            "unknown", "it runs and /health answers, but it gives no token",
        )  # fmt: skip
        watch.until("ends", "hangs")
        assert {one.result().tokens for one in requests} == {TOKENS}, "a server that goes on loses nothing"

    asked(CLIENTS, stopped)

    def killed(requests: list[Future[Streamed]]) -> None:
        core().kill()
        began = time.monotonic()
        silent, _ = watch.until("unreachable")
        at, line = watch.until("begins", "gone")
        NOTICED["unreachable"], NOTICED["gone"] = silent - began, at - began
        assert "the server has exited" in line["reason"]
        assert all(one.exception() for one in requests), "they cannot be answered any more"

    asked(CLIENTS, killed)
    watch.end()
