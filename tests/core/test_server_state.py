"""One state of a server, from every word that is stored or seen, and a meaning for every word that is printed."""

from __future__ import annotations

from typing import get_args

import pytest

from gemmaspec.core.server_state import GONE, LIVES, MEANINGS, Recorded, Seen, ServerState, state_of


@pytest.mark.parametrize(
    ("recorded", "running", "exited", "absent"),
    [
        ("starting", "starting", "exited", "exited"),
        ("ready", "ready", "exited", "exited"),
        ("failed", "starting", "exited", "exited"),
        ("interrupted", "starting", "stopped", "stopped"),
        ("stopping", "stopping", "stopped", "stopped"),
        ("stopped", "starting", "stopped", "stopped"),
    ],
)
def test_record_and_engine_make_one_state(recorded: Recorded, running: str, exited: str, absent: str) -> None:
    assert state_of(recorded, "running") == running
    assert state_of(recorded, "restarting") == running
    assert state_of(recorded, "exited") == exited
    assert state_of(recorded, "absent") == absent
    assert state_of(recorded, "unknown") is None


def test_a_server_stops_until_nothing_of_it_is_left() -> None:
    assert state_of("stopping", "exited", left=True) is ServerState.STOPPING
    assert state_of("stopping", "exited") is ServerState.STOPPED
    assert state_of("ready", "exited", left=True) is ServerState.EXITED, "only `down` waits for its end"


def test_no_word_that_is_stored_or_seen_lacks_a_state() -> None:
    for recorded in get_args(Recorded):
        for seen in set(get_args(Seen)) - {"unknown"}:
            assert state_of(recorded, seen) in ServerState
    assert {*LIVES, *GONE, "unknown"} == set(get_args(Seen))
    assert set(ServerState) | {"degraded", "unknown"} == set(MEANINGS)
