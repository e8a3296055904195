"""What tests of `watch` on real servers share: a hook that spoils a draft, clients that count what they lose."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gemmaspec.run.kept.verdicts import WATCH
from tests.support.docker_support import wait_for
from tests.support.real import PROFILE, STATE, environment
from tests.support.streamed import QUESTIONS, Streamed, stream

CLIENTS = 8
WINDOW_S, HANG_S = 4, 3
PATIENCE_S = 600
"""For each fault: nothing of this is quick where other tests use the same cores."""
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

    def until_it_looked(self) -> None:
        """Wait until the watch on the host has read the server's counters once."""
        wait_for((STATE / "stacks" / PROFILE / WATCH).is_file, seconds=PATIENCE_S)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=120)
        self.reading.join()
        assert self.process.stdout
        self.process.stdout.close()


@dataclass
class Load:
    """Clients that ask again and again until they are let go: the server has work for as long as a test needs it."""

    asking: list[Future[None]] = field(default_factory=list)
    answers: list[tuple[str, Streamed]] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def ask(self, client: int) -> None:
        question = QUESTIONS[client % len(QUESTIONS)]
        while not self.over.is_set():
            self.answers.append((question, stream(question)))
            self.answered.add(client)

    def all_answered(self) -> None:
        """Wait until each client has had an answer, after which it asks its next question."""
        wait_for(lambda: len(self.answered) == len(self.asking) or self.lost(), seconds=PATIENCE_S)
        assert not self.lost()

    def lost(self) -> list[BaseException]:
        """What ended clients."""
        return [error for one in self.asking if one.done() and (error := one.exception())]


@contextlib.contextmanager
def clients(count: int, *, lost: int = 0) -> Iterator[Load]:
    """Load the server while the body runs, and fail unless exactly `lost` clients lost their request."""
    load = Load()
    with ThreadPoolExecutor(count) as pool:
        load.asking.extend(pool.submit(load.ask, client) for client in range(count))
        try:
            yield load
        finally:
            load.over.set()
    assert len(load.lost()) == lost, load.lost()
