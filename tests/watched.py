"""What tests of `watch` on real servers share: a hook that spoils a draft, clients that count what they lose."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.real import PROFILE, environment, gemmaspec
from tests.test_live_k_real import QUESTIONS, Streamed, stream

CLIENTS = 16
WINDOW_S, HANG_S = 8, 3
PATIENCE_S = 240
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

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=120)
        self.reading.join()
        assert self.process.stdout
        self.process.stdout.close()


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


def k_in_use() -> int:
    found: int = gemmaspec("k", PROFILE, "--json").json["k"]
    return found
