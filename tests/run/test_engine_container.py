"""What docker's attributes mean, for states that are hard to bring about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemmaspec.run.engine.container import has_nvidia, log_start, publishes, state_of

NEVER = "0001-01-01T00:00:00Z"


def attributes(status: str, **seen: Any) -> dict[str, Any]:
    return {"Id": "0123456789abcdef", "RestartCount": 2, "State": {"Status": status, "ExitCode": 9, **seen}}


@pytest.mark.parametrize(
    ("status", "seen", "code", "told"),
    [
        ("running", "running", None, ""),
        ("paused", "running", None, "paused"),
        ("restarting", "restarting", 9, ""),
        ("exited", "exited", 9, ""),
        ("dead", "exited", 9, ""),
        ("removing", "exited", 9, ""),
        ("created", "exited", None, "created"),
    ],
)
def test_each_of_dockers_states_is_one_of_ours(status: str, seen: str, code: int | None, told: str) -> None:
    state = state_of(attributes(status))
    assert (state.status, state.exit_code, state.restarts) == (seen, code, 2)
    assert state.detail == ", ".join(filter(None, ("container 0123456789ab", told)))


def test_health_and_dockers_own_error_are_told_without_escapes() -> None:
    state = state_of(attributes("exited", Health={"Status": "unhealthy"}, Error="no \x1b[31mexec"))
    assert state.detail == "container 0123456789ab, unhealthy, no exec"


@pytest.mark.parametrize(
    ("info", "has"),
    [
        ({}, False),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": None, "CDISpecDirs": None}, False),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/card=0"}]}, False),
    ],
)
def test_a_gpu_is_offered_by_the_runtime_or_by_a_cdi_device(info: dict[str, Any], has: bool) -> None:
    assert has_nvidia(info) is has


def test_a_gpu_is_offered_by_a_cdi_file(tmp_path: Path) -> None:
    info = {"CDISpecDirs": ["/nonexistent", str(tmp_path)]}
    assert not has_nvidia(info)
    (tmp_path / "nvidia.yaml").touch()
    assert has_nvidia(info)


@pytest.mark.parametrize(
    ("held", "asked", "collides"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("", "127.0.0.1", True),
        ("0.0.0.0", "192.0.2.7", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("192.0.2.7", "127.0.0.1", False),
    ],
)
def test_a_port_collides_where_the_addresses_overlap(held: str, asked: str, collides: bool) -> None:
    bindings = {"8000/tcp": [{"HostIp": held, "HostPort": "8000"}], "9/tcp": None}
    container = {"HostConfig": {"PortBindings": bindings}}
    assert publishes(container, bind=asked, port=8000) is collides
    assert not publishes(container, bind=asked, port=8001)
    assert not publishes({"HostConfig": {"PortBindings": None}}, bind=asked, port=8000)


def test_the_lines_of_a_first_run_are_all_its_own() -> None:
    assert log_start({"Status": "running", "StartedAt": NEVER, "FinishedAt": NEVER}) is None
    first = {"Status": "running", "StartedAt": "2026-01-01T00:00:00.5Z", "FinishedAt": NEVER}
    assert log_start(first) is None


def test_the_lines_of_a_later_run_begin_between_the_runs() -> None:
    start, end = "2026-01-01T00:00:10.123456789Z", "2026-01-01T00:00:08.123456789Z"
    running = log_start({"Status": "running", "StartedAt": start, "FinishedAt": end})
    assert running == pytest.approx(1767225609.123, abs=0.001)
    # A run of milliseconds ends before docker notes that it has begun.
    ended = log_start({"Status": "exited", "StartedAt": start, "FinishedAt": "2026-01-01T00:00:10.120Z"})
    assert ended == pytest.approx(1767225610.020, abs=0.001)
