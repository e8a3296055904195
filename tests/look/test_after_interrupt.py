"""What a Ctrl-C has left, and the command that goes on."""

from __future__ import annotations

import pytest

from gemmaspec.look.after_interrupt import after_interrupt
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Started
from tests.support.fake_engine import FakeMachine
from tests.support.fake_server import FakeServer


@pytest.mark.parametrize(
    ("known_good", "told"),
    [("20261128T000000Z-00000000", "starts it as it ran before"), (None, "starts it again; it was never ready")],
)
def test_a_server_that_was_never_ready_did_not_run_before(
    machine: FakeMachine, fake_metrics: FakeServer, known_good: str | None, told: str
) -> None:
    server = fake_metrics.server()
    started = Started(engine="process", server=server, profile="tiny-cpu", known_good=known_good)
    stacks.stack_folder(server.name).mkdir(parents=True)
    stacks.save(started)
    notes: list[str] = []
    assert after_interrupt(server.name, notes.append) == f"interrupted; {server.name} is not running"
    assert notes == [f"gemmaspec restart {server.name}    # {told}"]
