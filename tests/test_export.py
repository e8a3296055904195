"""`export llama-swap` and `export open-webui`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.files import state_dir
from tests.fake_engine import FakeMachine


def test_llama_swap_gets_a_command_that_lives_as_long_as_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """llama-swap of 2026-08-22 ran this: it started, swapped and stopped servers, and its schema takes the keys."""
    assert run(["export", "llama-swap", "spark-31b-mtp", "tiny-cpu"]) == 0
    models = yaml.safe_load(capsys.readouterr().out)["models"]
    assert list(models) == ["spark-31b-mtp", "tiny-cpu"]
    assert shlex.split(models["tiny-cpu"]["cmd"]) == [
        "sh", "-c", "gemmaspec up tiny-cpu && exec gemmaspec logs -f tiny-cpu",
    ]  # fmt: skip
    assert models["tiny-cpu"]["proxy"] == "http://127.0.0.1:8321"
    assert models["spark-31b-mtp"]["useModelName"] == "LilaRest/gemma-4-31B-it-NVFP4-turbo"
    known = {"cmd", "cmdStop", "proxy", "checkEndpoint", "useModelName", "ttl", "unloadTimeout", "concurrencyLimit"}
    assert set(models["tiny-cpu"]) == known


def test_a_profile_in_a_folder_with_a_blank_is_still_one_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "it's mine" / "own.yaml"
    file.parent.mkdir()
    file.write_text("extends: tiny-cpu\nname: own\n")
    assert run(["export", "llama-swap", str(file)]) == 0
    command = shlex.split(yaml.safe_load(capsys.readouterr().out)["models"]["own"]["cmd"])
    assert shlex.split(command[2])[:3] == ["gemmaspec", "up", str(file)]


def test_open_webui_is_a_compose_file_for_what_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "open-webui"]) == 2
    capsys.readouterr()
    FakeMachine().install(monkeypatch)
    for name in ("tiny-target", "tiny-draft"):
        (state_dir() / "tiny" / name).mkdir(parents=True)
        (state_dir() / "tiny" / name / "config.json").write_text("{}")
    assert run(["up", "tiny-cpu", "--engine", "process", "--set", f"runtime.python={sys.executable}"]) == 0
    capsys.readouterr()
    assert run(["export", "open-webui"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    environment = made["services"]["open-webui"]["environment"]
    assert environment["OPENAI_API_BASE_URL"] == "http://127.0.0.1:8321/v1"
    assert environment["HOST"] == "127.0.0.1"
