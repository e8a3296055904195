"""One step of a rolling change at a time, against a router and replicas that only remember what was asked of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.core.live.sample import Sample
from gemmaspec.core.rolling.steps import Roll
from gemmaspec.run.engine.router import RouterServer
from gemmaspec.run.engine.routing import HaProxy, Routed, RouterPlace
from gemmaspec.run.engine.server import Server, State
from gemmaspec.run.kept import groups, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.stack_lock import Told
from gemmaspec.run.kept.stacks import Options, Started, stack_folder
from gemmaspec.serve import roll
from gemmaspec.serve.roll import Rolling


@dataclass
class Remembering(HaProxy):
    """A router that has two replicas."""

    inside: set[int] = field(default_factory=lambda: {1, 2})
    dead: set[int] = field(default_factory=set)

    def answers(self) -> bool:
        return True

    def add(self, place: RouterPlace) -> None:
        self.inside.add(place.index)

    def remove(self, place: RouterPlace) -> None:
        self.inside.discard(place.index)

    def look(self, place: RouterPlace) -> Routed:
        return Routed(inside=place.index in self.inside, healthy=place.index not in self.dead, requests=0)


@dataclass
class Quiet:
    """Progress, and the lock, that keep what they are told."""

    said: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.said.append(text)

    def tell(self, phase: str) -> None:
        pass


@dataclass
class Scene:
    """Two replicas, one of them about to be replaced."""

    routing: Remembering
    quiet: Quiet
    rolling: Rolling

    def audit(self) -> list[str]:
        return [line.partition("): ")[2] for line in (stack_folder("pair") / groups.AUDIT).read_text().splitlines()]


def _started(name: str) -> Started:
    index = int(name[-1])
    server = Server(name=name, folder=stack_folder(name), port=8000 + index, model="m", speculates=True)
    return Started(engine="process", server=server, profile="pair", replica=index, outcome="ready")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    routing, quiet = Remembering(), Quiet()
    monkeypatch.setattr(RouterServer, "routing", routing)
    monkeypatch.setattr(stacks, "find", _started)
    monkeypatch.setattr(stacks, "read_stack", _started)
    monkeypatch.setattr(stacks, "look", lambda _: State(status="running"))
    for name, value in (("_SETTLE_S", 0.0), ("_POLL_S", 0.01), ("_HEALTHY_S", 0.0)):
        monkeypatch.setattr(roll, name, value)
    _running(monkeypatch, 0)
    router = RouterServer(
        name="pair", folder=stack_folder("pair") / "router", policy="conversation",
        bind="127.0.0.1", port=8000, metrics_port=8003, first_port=8001, program="none",
    )  # fmt: skip
    options = Options(profile="pair", engine="process")
    group = Group(name="pair", options=options, replicas=(1, 2), router=router, drain_s=0.05)
    rolling = Rolling(
        group=group,
        roll=Roll(replicas=(("pair-1", "changed"), ("pair-2", "changed")), router="same"),
        before=group,
        command="up",
        told=Told(progress=cast("Any", quiet), owner=cast("Any", quiet)),
        serve=lambda *_: cast("Any", None),
    )
    return Scene(routing, quiet, rolling)


def _running(monkeypatch: pytest.MonkeyPatch, requests: int) -> None:
    monkeypatch.setattr(roll, "read_metrics", lambda *_, **__: Sample(at=0.0, running=requests, histograms={}))


def test_requests_that_do_not_end_within_the_bound_are_cut_and_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _running(monkeypatch, 3)
    rolled = scene.rolling.carry_out()
    assert rolled.end.changed == ("pair-1", "pair-2")
    assert "pair-1: 3 requests still ran after 0 s; they are cut" in scene.quiet.said
    assert any(line.startswith("drain pair-1: done") and "they are cut" in line for line in scene.audit())
    assert scene.routing.inside == {1, 2}


def test_an_interrupted_drain_puts_the_replica_back(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Sample:
        assert scene.routing.inside == {2}
        raise KeyboardInterrupt

    monkeypatch.setattr(roll, "read_metrics", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scene.rolling.carry_out()
    assert scene.routing.inside == {1, 2}
    assert scene.audit()[-2:] == ["drain pair-1: interrupted", "add pair-1: put back"]


def test_the_last_healthy_replica_is_not_taken_out(scene: Scene) -> None:
    scene.routing.dead = {2}
    with pytest.raises(StartFailed, match="pair-1 stays in the router, because no other replica serves") as failed:
        scene.rolling.carry_out()
    assert "stopped at: remove pair-1" in failed.value.message
    assert "pair-1, pair-2: unchanged" in failed.value.message
    assert scene.routing.inside == {1, 2}


def test_a_second_replica_that_fails_leaves_a_way_back_for_the_first(scene: Scene) -> None:
    def serve(name: str, _: object) -> Any:
        if name == "pair-2":
            raise GemmaspecError("no memory")

    scene.rolling.serve = serve
    with pytest.raises(GemmaspecError) as failed:
        scene.rolling.carry_out()
    said = failed.value.message.splitlines()
    assert said == ["no memory", "stopped at: replace pair-2", "pair-1: runs the new configuration",
                    "pair-2: runs again as before"]  # fmt: skip
    assert scene.routing.inside == {1, 2}
    assert failed.value.hint is None  # nothing that was known to be good was replaced
