"""`demo`: everything on a tiny pair, once with a draft and once without."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from gemmaspec.deploy.start.decide import UpRequest
from gemmaspec.deploy.start.down import down
from gemmaspec.deploy.start.starting import Running, StartProgress
from gemmaspec.deploy.start.up import up
from gemmaspec.engine.server import EngineName
from gemmaspec.errors import GemmaspecError
from gemmaspec.ready.first_request import Answer, ask

PROFILE = "tiny-cpu"
QUESTION = "Explain quantum entanglement to the quick brown fox."
ROUNDS = 3
"""How often each server answers. The fastest answer counts, because the first ones warm up."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One server's start and its answer."""

    seconds_to_ready: float
    answer: Answer


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The same question, asked with and without speculation."""

    question: str
    engine: EngineName
    report: dict[str, Any] | None
    alone: Side
    drafted: Side

    @property
    def same_text(self) -> bool:
        """Whether both answers are the same, as greedy decoding requires."""
        return self.alone.answer.text == self.drafted.answer.text


def demo(*, engine: EngineName | None, keep: bool, progress: StartProgress) -> Demo:
    """Run the tiny pair; with `keep` the server with the draft stays up."""
    try:
        progress.note("1 of 2: the target alone")
        alone, _ = _side(UpRequest(profile=PROFILE, no_spec=True, engine=engine, rollback_on_failure=False), progress)
        progress.note("2 of 2: the target with its draft")
        drafted, running = _side(UpRequest(profile=PROFILE, engine=engine, rollback_on_failure=False), progress)
        return Demo(
            question=QUESTION,
            engine=running.started.engine,
            report=running.report,
            alone=alone,
            drafted=drafted,
        )
    finally:
        if not keep:
            with contextlib.suppress(GemmaspecError):
                down(PROFILE)


def _side(request: UpRequest, progress: StartProgress) -> tuple[Side, Running]:
    running = up(request, progress)
    messages = [{"role": "user", "content": QUESTION}]
    answers = [ask(running.started.server, messages, max_tokens=96) for _ in range(ROUNDS)]
    best = max(answers, key=lambda answer: answer.tokens_per_second)
    return Side(seconds_to_ready=running.ready.seconds, answer=best), running
