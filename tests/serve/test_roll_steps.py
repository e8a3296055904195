"""One step of a rolling change at a time, against a router and replicas that only remember what was asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.core.rolling.steps import Roll
from gemmaspec.run.engine.router import RouterServer
from gemmaspec.run.engine.routing import HaProxy, Routed, RouterPlace
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept import groups, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.stack_lock import Told
from gemmaspec.run.kept.stacks import Options, Started, stack_folder
from gemmaspec.serve.roll import Rolling
from tests.support.fake_engine import FakeMachine
from tests.support.fake_server import FakeServer, fake_server


@dataclass
class Remembering(HaProxy):
    """A router that has two replicas."""

    inside: set[int] = field(default_factory=lambda: {1, 2})
    dead: set[int] = field(default_factory=set)
    interrupts: list[BaseException] = field(default_factory=list)
    """What comes while a replica that was taken out is looked at."""

    def answers(self) -> bool:
        return True

    def add(self, place: RouterPlace) -> None:
        self.inside.add(place.index)

    def remove(self, place: RouterPlace) -> None:
        self.inside.discard(place.index)

    def look(self, place: RouterPlace) -> Routed:
        if place.index not in self.inside and self.interrupts:
            raise self.interrupts.pop()
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
    servers: Sequence[FakeServer]

    def audit(self) -> list[str]:
        return [line.partition("): ")[2] for line in (stack_folder("pair") / groups.AUDIT).read_text().splitlines()]


def _runs(machine: FakeMachine, index: int, port: int) -> None:
    """Record a replica that its engine sees run."""
    name = f"pair-{index}"
    server = Server(name=name, folder=stack_folder(name), port=port, model="m", speculates=True)
    server.folder.mkdir(parents=True)
    stacks.save(Started(engine="process", server=server, profile="pair", replica=index, outcome="ready"))
    machine.running[name] = "process", server


@pytest.fixture
def scene(machine: FakeMachine) -> Iterator[Scene]:
    with fake_server() as first, fake_server() as second:
        servers = (first, second)
        for index, server in enumerate(servers, 1):
            server.metrics = _running(0)
            _runs(machine, index, server.port)
        yield _scene(servers)


def _scene(servers: Sequence[FakeServer]) -> Scene:
    routing, quiet = Remembering(), Quiet()

    class FakeRouter(RouterServer):
        @property
        def routing(self) -> HaProxy:
            return routing

    router = FakeRouter(
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
        settle_s=0.0,
        healthy_s=0.0,
        poll_s=0.01,
    )
    return Scene(routing, quiet, rolling, servers)


def _running(requests: int) -> bytes:
    return f"vllm:num_requests_running {requests}\n".encode()


def test_requests_that_do_not_end_within_the_bound_are_cut_and_said(scene: Scene) -> None:
    scene.servers[0].metrics = _running(3)
    rolled = scene.rolling.carry_out()
    assert rolled.end.changed == ("pair-1", "pair-2")
    assert "pair-1: 3 requests still ran after 0 s; they are cut" in scene.quiet.said
    assert any(line.startswith("drain pair-1: done") and "they are cut" in line for line in scene.audit())
    assert scene.routing.inside == {1, 2}


def test_an_interrupted_drain_puts_the_replica_back(scene: Scene) -> None:
    scene.routing.interrupts = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        scene.rolling.carry_out()
    assert scene.routing.inside == {1, 2}
    assert scene.routing.interrupts == []
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
