"""What a command asks of its profile it asks once, and hands the answer on.

The walk is what a reader goes through who follows a run with a debugger, and reads each function when it is called first:
how often he comes into another file. It counts methods and properties, and `house.Walk`, which follows the text alone,
does not; its bounds are in test_house.py. Each bound is what was found in a new process, and a tenth, at least one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
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
WALK: Final = "walk"


def more_than(most: Most, calls: Calls) -> dict[str, int]:
    assert most.keys() == {*ASKED, WALK}
    counted = {name: calls.of(file, name) for name, file in ASKED.items()} | {WALK: len(calls.walk())}
    assert counted[WALK] > 20
    return {name: number for name, number in counted.items() if number > most[name]}


def test_up(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, profiles: Path) -> None:
    own_profiles(profiles, monkeypatch, {"mine": 8601})
    with Calls() as calls:
        assert up() == 0
    assert machine.calls
    most = {"load_profile": 2, "resolved_of": 3, "command_of": 2, "extra_of": 8, "vllm_of": 8, "graph_modes": 1}
    assert more_than(most | {WALK: 344}, calls) == {}


def test_predict() -> None:
    with Calls() as calls:
        assert run(["predict", "spark-31b-mtp"]) == 0
    most = {"load_profile": 2, "resolved_of": 7, "command_of": 9, "extra_of": 12, "vllm_of": 8, "graph_modes": 4}
    assert more_than(most | {WALK: 268}, calls) == {}


def test_fit() -> None:
    with Calls() as calls:
        assert run(["fit", "spark-31b-mtp"]) == 0
    most = {"load_profile": 3, "resolved_of": 10, "command_of": 13, "extra_of": 17, "vllm_of": 9, "graph_modes": 5}
    assert more_than(most | {WALK: 375}, calls) == {}


def test_bench(fake_api: FakeVllm, tmp_path: Path) -> None:
    folder, out = tmp_path / "prompts", tmp_path / "out"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    own = ["--k", str(fake_api.k), "--concurrency", "1", "--rounds", "1", "--max-tokens", "24", "--repeats", "0"]
    with Calls() as calls:
        assert run(["bench", "tiny-cpu", "--url", fake_api.url, "--prompts", str(folder), "--out", str(out), *own]) == 0
    most = {"load_profile": 2, "resolved_of": 2, "command_of": 2, "extra_of": 5, "vllm_of": 2, "graph_modes": 1}
    assert more_than(most | {WALK: 156}, calls) == {}


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


def test_a_walk_goes_into_a_file_where_a_function_is_called_first() -> None:
    with Calls() as calls:
        profile = load_profile("tiny-cpu").profile
        resolved_of(profile)
        before = calls.walk()
        resolved_of(profile)
        assert calls.walk() == before
    assert before[0].endswith("core/profile/load.py")
    assert all(one != other for one, other in pairwise(before))
