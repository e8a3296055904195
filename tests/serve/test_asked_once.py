"""What a command asks of its profile it asks once, and hands the answer on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.resolved.resolve import resolved_of
from tests.support.calls import Calls
from tests.support.fake_engine import FakeMachine
from tests.support.fake_vllm import FakeVllm
from tests.support.fixtures import own_profiles, up

ASKED: Final[Mapping[str, str]] = {
    "load_profile": "core/profile/load.py",
    "resolved_of": "core/resolved/resolve.py",
    "command_of": "core/profile/command.py",
    "extra_of": "core/profile/command.py",
    "vllm_of": "core/profile/command.py",
    "graph_modes": "core/profile/graphs.py",
}
"""Function that reads a profile or what vLLM makes of it → its file."""
Most = dict[str, int]


def more_than(most: Most, calls: Calls) -> dict[str, int]:
    assert most.keys() == ASKED.keys()
    counted = {name: calls.of(file, name) for name, file in ASKED.items()}
    return {name: number for name, number in counted.items() if number > most[name]}


def test_up(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, profiles: Path) -> None:
    own_profiles(profiles, monkeypatch, {"mine": 8601})
    with Calls() as calls:
        assert up() == 0
    assert machine.calls
    most = {"load_profile": 1, "resolved_of": 2, "command_of": 1, "extra_of": 6, "vllm_of": 6, "graph_modes": 0}
    assert more_than(most, calls) == {}


def test_predict() -> None:
    with Calls() as calls:
        assert run(["predict", "spark-31b-mtp"]) == 0
    most = {"load_profile": 1, "resolved_of": 6, "command_of": 6, "extra_of": 9, "vllm_of": 7, "graph_modes": 3}
    assert more_than(most, calls) == {}


def test_fit() -> None:
    with Calls() as calls:
        assert run(["fit", "spark-31b-mtp"]) == 0
    most = {"load_profile": 2, "resolved_of": 9, "command_of": 9, "extra_of": 14, "vllm_of": 9, "graph_modes": 4}
    assert more_than(most, calls) == {}


def test_bench(fake_api: FakeVllm, tmp_path: Path) -> None:
    folder, out = tmp_path / "prompts", tmp_path / "out"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    own = ["--k", str(fake_api.k), "--concurrency", "1", "--rounds", "1", "--max-tokens", "24", "--repeats", "0"]
    with Calls() as calls:
        assert run(["bench", "tiny-cpu", "--url", fake_api.url, "--prompts", str(folder), "--out", str(out), *own]) == 0
    most = {"load_profile": 1, "resolved_of": 0, "command_of": 0, "extra_of": 2, "vllm_of": 0, "graph_modes": 0}
    assert more_than(most, calls) == {}


def test_each_call_is_counted() -> None:
    with Calls() as calls:
        profile = load_profile("tiny-cpu").profile
        resolved_of(profile)
        resolved_of(profile)
    load_profile("tiny-cpu")
    assert {name: calls.of(ASKED[name], name) for name in ("load_profile", "resolved_of")} == {
        "load_profile": 1,
        "resolved_of": 2,
    }
