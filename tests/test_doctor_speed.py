"""`doctor --speed`: the judgement, and a real reading of this machine's memory, short."""

from __future__ import annotations

import json
import threading

import pytest

from gemmaspec.cli.app import run
from gemmaspec.deploy import doctor_machine
from gemmaspec.doctor.speed import Reading, memory_row
from gemmaspec.machine.bandwidth import read_memory


def test_an_even_memory_is_fine_and_an_uneven_one_is_a_warning() -> None:
    even = memory_row(Reading(threads=2, bytes_per_second=(10e9, 11e9, 10.5e9)))
    assert (even.state, even.message) == ("ok", "reads 10.5 GB/s with 2 threads (10.0 to 11.0)")
    uneven = memory_row(Reading(threads=2, bytes_per_second=(4e9, 11e9, 10e9)))
    assert uneven.state == "warning"
    assert "something else uses it or clocks change" in uneven.message


def test_the_memory_is_really_read_and_its_threads_end() -> None:
    before = threading.active_count()
    found = read_memory(seconds=0.2, slices=2, buffer=8 * 1024 * 1024)
    assert len(found.bytes_per_second) == 2
    assert all(1e7 < rate < 5e12 for rate in found.bytes_per_second)
    assert threading.active_count() == before


def test_the_command_adds_its_row_only_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine.bandwidth, "read_memory", lambda: Reading(threads=1, bytes_per_second=(1e9,)))
    run(["doctor", "--engine", "process", "--speed", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["memory speed"]["state"] == "ok"
    run(["doctor", "--engine", "process", "--json"])
    assert "memory speed" not in capsys.readouterr().out
