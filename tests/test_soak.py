"""`soak`: conversations that grow, and what decays over them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator

import pytest

from gemmaspec.bench.soak import Turn, figures, turns_of
from gemmaspec.cli.app import run
from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.stacks import Started
from gemmaspec.engine.server import State
from tests.beside import served
from tests.fake_chat import FakeChat


def turns(*, end: float = 1.0, memory: float = 0.5) -> list[Turn]:
    """Six conversations of six turns; acceptance and speed of the last two are `end` of the others'."""
    return [
        Turn(
            place=place,
            kind="greedy",
            seconds=1.0 + place,
            tokens=round(100 * (end if number > 3 else 1)),
            drafts=100,
            accepted=round(200 * (end if number > 3 else 1)),
            memory=memory if number > 3 else 0.5,
        )
        for number in range(6)
        for place in range(6)
    ]


def test_a_steady_server_decays_in_nothing() -> None:
    found = {one.name: one for one in figures(turns())}
    assert set(found) == {"acceptance length", "tokens per second", "memory in use"}
    assert not any(one.decays for one in found.values())


def test_what_decays_is_named_by_its_figure() -> None:
    found = {one.name: one for one in figures(turns(end=0.5))}
    assert (found["acceptance length"].start, found["acceptance length"].end) == (3.0, 2.0)
    assert {name for name, one in found.items() if one.decays} == {"acceptance length", "tokens per second"}
    found = {one.name: one for one in figures(turns(memory=0.6))}
    assert {name for name, one in found.items() if one.decays} == {"memory in use"}


def test_contexts_of_other_lengths_are_not_compared() -> None:
    """Longer contexts are slower by themselves: that is not decay."""
    slow_later = [dataclasses.replace(one, place=index) for index, one in enumerate(turns(end=0.5))]
    assert figures(slow_later) == []
    assert figures(turns()[:3]) == []


def test_a_conversation_grows_until_its_context_is_full_and_keeps_its_beginning() -> None:
    bodies = []
    for kind, body in turns_of(1, context=4096, tokens=128, tools=True):
        bodies.append((kind, json.dumps(body["messages"])))
        body["messages"].append({"role": "assistant", "content": "x" * 300})
    assert {kind for kind, _ in bodies} == {"greedy", "sampled", "tools"}
    assert all(after.startswith(before[:-1]) for (_, before), (_, after) in itertools.pairwise(bodies))
    assert 3 * (4096 - 128) - 1500 < len(bodies[-1][1]) < 3 * 4096


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeChat]:
    with served(FakeChat()) as fake:
        started = Started(engine="process", server=fake.server(), profile="tiny-cpu", outcome="ready")
        stacks.save(started)
        monkeypatch.setattr(stacks, "look", lambda *_: State(status="exited" if fake.dead else "running"))
        yield fake


def test_soak_counts_turns_and_ends_in_time(
    fake: FakeChat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gemmaspec.bench.soak.figures", lambda _: [])  # a loaded machine is no steady one
    assert run(["soak", "fake", "--for", "2s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["turns"] >= 2
    assert found["faults"] == []
    assert len(fake.seen) >= found["turns"]
    assert fake.seen[1]["messages"][1]["role"] == "assistant"


def test_a_turn_without_an_answer_is_a_failure(fake: FakeChat, capsys: pytest.CaptureFixture[str]) -> None:
    fake.spoil = lambda body, reply, server: reply.but(status=500, said="EngineDeadError")
    assert run(["soak", "fake", "--for", "1s"]) == 1
    assert "EngineDeadError" in capsys.readouterr().err


def test_a_server_that_does_not_run_is_named(fake: FakeChat) -> None:
    fake.dead = True
    assert run(["soak", "fake", "--for", "1s"]) == 4
    assert run(["soak", "never", "--for", "1s"]) == 2
    assert run(["soak", "fake", "--for", "soon"]) == 2
