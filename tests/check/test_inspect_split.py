"""Experts in NVFP4 on several GPUs: inspect says what lint says (GS222)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from tests.support.odd_checkpoints import dense, nvfp4, split


@pytest.mark.parametrize(
    ("serve", "code", "severity"),
    [
        ("", 0, "note"),
        ("serve: {tensor_parallel_size: 2}", 3, "error"),
        ("serve: {tensor_parallel_size: 2, extra_args: [--enable-expert-parallel]}", 0, None),
    ],
)
def test_a_part_of_an_expert_is_an_error_where_a_profile_asks_for_it(
    serve: str,
    code: int,
    severity: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = nvfp4(split()).write(tmp_path / "model")
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(tmp_path))
    profile = tmp_path / "two.yaml"
    start = "schema: 1\nname: two\nsummary: two\nmachine: h100\nimage: vllm/vllm-openai:v0.33.0"
    profile.write_text(f"{start}\ntarget: {{model: {folder}}}\n{serve}\n")
    assert run(["inspect", "two", "--json"]) == code
    found = {one["code"]: one["severity"] for one in json.loads(capsys.readouterr().out)["target"]["findings"]}
    assert found.get("experts-not-split") == severity


def test_a_model_without_experts_has_nothing_to_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["inspect", str(nvfp4(dense()).write(tmp_path / "model")), "--json"])
    assert "experts-not-split" not in capsys.readouterr().out
