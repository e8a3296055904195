"""`soak`: long conversations with a running server, for as long as asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import psutil

from gemmaspec.bench.soak import Turn, turns_of
from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.views.connect import endpoint
from gemmaspec.engine.server import Server
from gemmaspec.errors import EnvironmentMissing, StartFailed
from gemmaspec.machine import nvidia
from gemmaspec.measure.chat import ChatAsking, ask_all
from gemmaspec.ready.first_request import api_key_for
from gemmaspec.smoke.answer import Fault
from gemmaspec.smoke.check import Ask

_TOKENS: Final = 128
_LONGEST: Final = 32_768
"""Tokens of a conversation, at most, where the profile allows more."""
_REQUEST_S: Final = 600.0


def soak(name: str, *, seconds: float, on_turn: Callable[[Turn], None]) -> list[Turn]:
    """Hold one conversation after another until the time is over, and return every turn.

    Raises UsageError if the stack was not started here, EnvironmentMissing if it does not run, StartFailed if it dies.
    """
    started, to = stacks.find(name), endpoint(name)
    engine = stacks.engine_of(started)
    if stacks.look(started, engine).status != "running":
        raise EnvironmentMissing(f"{name} is not running", hint=f"gemmaspec up {started.profile}")
    until, found = time.monotonic() + seconds, list[Turn]()
    number, tokens = 0, min(_TOKENS, (to.context or _LONGEST) // 4)
    while time.monotonic() < until:
        for turn in _conversation(started.server, number, min(to.context or _LONGEST, _LONGEST), tokens, to.tools):
            found.append(turn)
            on_turn(turn)
            if turn.fault and stacks.look(started, engine).status != "running":
                raise StartFailed(
                    f"{name} ended after {len(found)} turns: {turn.fault}", hint=f"gemmaspec logs --previous {name}"
                )
            if time.monotonic() >= until:
                break
        number += 1
    return found


def _conversation(server: Server, number: int, context: int, tokens: int, tools: bool) -> Iterator[Turn]:
    asking = ChatAsking(
        server=server, api_key=api_key_for(server), together=1, request_s=_REQUEST_S, run_s=_REQUEST_S, counted=True
    )
    for place, (kind, body) in enumerate(turns_of(number, context=context, tokens=tokens, tools=tools)):
        began = time.monotonic()
        (answer,) = ask_all(asking, [Ask(key="turn", body=body, alone=True)], on_answer=lambda _: None)
        if answer.fault is Fault.REFUSED and place:
            return  # the context is full: the server counts tokens, and the conversation characters
        fault = f"{answer.fault}: {answer.said}" if answer.fault else ""
        yield Turn(
            place=place,
            kind=kind,
            seconds=time.monotonic() - began,
            tokens=answer.completion_tokens,
            drafts=answer.drafts,
            accepted=answer.accepted,
            memory=_memory(),
            fault=fault,
        )
        if fault:
            return
        body["messages"].append({"role": "assistant", "content": answer.content or "(a call)"})


def _memory() -> float:
    """Return the share of the memory in use: of the GPUs, or of the machine where they share its memory."""
    gpus, loads = nvidia.gpus(), nvidia.loads()
    own = [(load.memory_used, gpu.memory) for gpu, load in zip(gpus, loads, strict=False)]
    whole = sum(size for used, size in own if used is not None and size)
    if whole:
        return sum(used for used, size in own if used is not None and size) / whole
    return psutil.virtual_memory().percent / 100
