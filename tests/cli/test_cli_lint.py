"""`gemmaspec profile lint`, and the same on the way of `up` and `render`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.profile.find import profile_names
from tests.support import shapes
from tests.support.lint_cases import BASE

GOOD = BASE.replace("h200", "dgx-spark").replace("4096}", "4096, disable_hybrid_kv_cache_manager: true}")
GOOD += "patches: {required: [kv-spec-uniform-valueerror, kv-sharing-uniform-specs, draft-text-only]}\n"
OLD_FLAG = "serve.extra_args=[--calculate-kv-scales]"
"""Known up to 0.27.1."""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A profile without an error or a warning."""
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD)
    return str(file)


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_all_profiles_are_checked_when_none_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run(["profile", "lint", "--json"]) == 0
    found = document(capsys)
    assert found["ok"] is True
    assert [one["name"] for one in found["profiles"]] == list(profile_names([data.PROFILES]))


def test_what_if_i_upgrade(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lint", mine, "--set", OLD_FLAG, "--release", "0.27.1"]) == 0
    capsys.readouterr()
    assert run(["profile", "lint", mine, "--set", OLD_FLAG, "--release", "0.28.0"]) == 2
    printed = capsys.readouterr()
    assert "mine: checked against vLLM 0.28.0" in printed.out
    assert "error GS101: serve.extra_args.0: vLLM 0.28.0 has no flag --calculate-kv-scales" in printed.out
    assert printed.err.startswith("1 profile: 1 error, 0 warnings, 0 notes; no checkpoint was looked at")


@pytest.mark.parametrize("written", ["v0.28.0", "0.28", "0.28.0+cu130"])
def test_a_release_may_be_written_in_several_ways(written: str, mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "speculative.draft_tensor_parallel_size=1", "--set", "serve.tensor_parallel_size=2"]
    assert run(["profile", "lint", mine, *sets, "--release", written]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("mine: checked against vLLM 0.28.0\n")
    assert "GS205" in printed
    assert "GS708" not in printed


def test_a_finding_as_json(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lint", mine, "--set", OLD_FLAG, "--json"]) == 2
    found = document(capsys)
    assert found["schema"] == 1
    assert found["ok"] is False
    (profile,) = found["profiles"]
    assert (profile["name"], profile["vllm"], profile["assumed"], profile["invalid"]) == ("mine", "0.33.0", False, None)
    (error,) = [one for one in profile["findings"] if one["severity"] == "error"]
    assert set(error) == {
        "code", "severity", "message", "impact", "fix", "key", "patches", "file", "line", "documentation"
    }  # fmt: skip
    assert (error["key"], error["patches"]) == ("serve.extra_args.0", [])
    assert error["message"]
    assert error["documentation"] == "gemmaspec explain GS101"


def test_warnings_count_when_they_are_asked_to(mine: str) -> None:
    moving = ["profile", "lint", mine, "--set", "image=vllm/vllm-openai:latest"]
    assert run(moving) == 0
    assert run([*moving, "--strict"]) == 2
    assert run(["profile", "lint", mine, "--strict"]) == 0


def test_a_profile_that_is_not_valid_does_not_hide_the_others(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(BASE.replace("name: mine", "name: broken").replace("summary", "sumary"))
    assert run(["profile", "lint", str(broken), mine]) == 2
    printed = capsys.readouterr()
    assert f"{broken}:3: sumary: unknown key; did you mean 'summary'?" in printed.out
    assert "mine: checked against vLLM 0.33.0" in printed.out
    assert "2 profiles: 2 errors" in printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-profile"], "unknown profile"),
        (["tiny-cpu", "--release", "newest"], "'newest' is not a vLLM release"),
        (["tiny-cpu", "--release", "9.0.0"], "vLLM 9.0.0 is not known yet"),
    ],
)
def test_what_is_not_there_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lint", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_speculation_can_be_left_out(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--set", "speculative.max_model_len=2048"]
    assert run(["profile", "lint", mine, *short]) == 0
    assert "GS216" in capsys.readouterr().out
    assert run(["profile", "lint", mine, "--no-spec"]) == 0
    assert "GS5" not in capsys.readouterr().out


def test_the_checkpoints_are_looked_into_when_asked(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for role, size in (("target", "31B"), ("draft", "E2B")):
        config = shapes.config(size)
        shapes.write(tmp_path / role, shapes.model(config, shapes.tensors(config)))
    sets = ["patches.required=[]", *(f"{role}.model={tmp_path / role}" for role in ("target", "draft"))]
    arguments = ["profile", "lint", mine, *(word for one in sets for word in ("--set", one))]
    assert run(arguments) == 0
    printed = capsys.readouterr()
    assert "warning GS401" in printed.out
    assert "no checkpoint was looked at, --models reads them" in printed.err
    assert run([*arguments, "--models"]) == 2
    printed = capsys.readouterr()
    assert "error GS401" in printed.out
    assert "no checkpoint" not in printed.err
    assert run([*arguments, "--models", "--json"]) == 2
    (report,) = json.loads(capsys.readouterr().out)["profiles"]
    assert report["checkpoints"] == [str(tmp_path / role) for role in ("target", "draft")]


def test_an_error_stops_render_with_the_same_text(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["profile", "lint", mine, "--set", OLD_FLAG])
    error = next(line for line in capsys.readouterr().out.splitlines() if "GS101" in line)
    assert run(["render", mine, "--set", OLD_FLAG, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert error in printed.err
    assert f"try: gemmaspec profile lint {mine}" in printed.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["up"], ["up", "--dry-run"]])
def test_an_error_stops_up_before_anything_is_looked_for(
    command: list[str], mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, mine, "--set", OLD_FLAG, "--engine", "docker"]) == 2
    printed = capsys.readouterr()
    assert "error GS101" in printed.err
    assert "engine docker" not in printed.err


def test_render_tells_a_warning_once_and_no_notes(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moving = ["--set", "image=vllm/vllm-openai:latest"]
    assert run(["render", mine, *moving, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().err
    assert printed.count("warning GS702") == 1
    assert " note " not in printed
