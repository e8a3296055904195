"""`inspect` says that a checkpoint can be loaded only where vLLM can load it: odd checkpoints, one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.checkpoint.stored import parameters
from gemmaspec.cli.app import run
from gemmaspec.models.open import open_checkpoint
from tests import shapes

CONFIG = shapes.config("E2B")
TENSORS = shapes.tensors(CONFIG)
TOKENS = shapes.tokenizer(more=9)
Change = Callable[[dict[str, Any]], dict[str, Any]]


def checkpoint(tmp_path: Path, change: Change | None = None, *, tensors: shapes.Shapes = TENSORS, **more: Any) -> Path:
    config = more.get("config", CONFIG)
    files: dict[str, Any] = dict(shapes.model(config, tensors, tokens=more.get("tokens", TOKENS)))
    return shapes.write(tmp_path / "model", change(files) if change else files)


def codes(folder: Path, capsys: pytest.CaptureFixture[str], expected: int) -> set[str]:
    assert run(["inspect", str(folder), "--json"]) == expected
    return {one["code"] for one in json.loads(capsys.readouterr().out)["target"]["findings"]}


def sharded(files: dict[str, Any], change: Callable[[dict[str, str]], None]) -> dict[str, Any]:
    index = json.loads(files["model.safetensors.index.json"])
    change(index["weight_map"])
    return {**files, "model.safetensors.index.json": json.dumps(index).encode()}


def test_a_whole_one_can_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not codes(checkpoint(tmp_path), capsys, 0) & {"layers-missing", "shapes-differ", "tokenizer-missing"}


def test_an_index_that_names_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(files: dict[str, Any]) -> dict[str, Any]:
        return sharded(files, lambda table: table.update({"model.norm.extra": "model-00099-of-00013.safetensors"}))

    assert "weights-missing" in codes(checkpoint(tmp_path, change), capsys, 3)


def test_an_index_that_leaves_a_shard_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM reads what the index names, though the numbered set is complete."""

    def drop(table: dict[str, str]) -> None:
        lost = table["model.language_model.layers.20.self_attn.q_proj.weight"]
        for name in [name for name, file in table.items() if file == lost]:
            del table[name]

    found = codes(checkpoint(tmp_path, lambda files: sharded(files, drop)), capsys, 3)
    assert {"not-in-index", "layers-missing"} <= found


def test_a_missing_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {name: shape for name, shape in TENSORS.items() if ".layers.17." not in name or "tower" in name}
    assert "layers-missing" in codes(checkpoint(tmp_path, tensors=tensors), capsys, 3)


def test_the_config_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = shapes.tensors(shapes.config("E4B"))
    assert {"shapes-differ", "layers-beyond"} <= codes(checkpoint(tmp_path, tensors=tensors), capsys, 3)


def test_no_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "tokenizer-missing" in codes(checkpoint(tmp_path, tokens=None), capsys, 3)


def test_mlx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed: shapes.Shapes = {}
    for name, (dtype, shape) in TENSORS.items():
        if not shapes.is_decoder_linear(name):
            packed[name] = (dtype, shape)
            continue
        stem = name.removesuffix(".weight")
        packed[name] = ("I32", (shape[0], shape[1] // 8))
        packed[f"{stem}.scales"] = packed[f"{stem}.biases"] = ("BF16", (shape[0], shape[1] // 64))
    folder = checkpoint(tmp_path, tensors=packed, config={**CONFIG, "quantization": {"group_size": 64, "bits": 4}})
    assert "mlx" in codes(folder, capsys, 3)


def test_gguf_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shapes.write(tmp_path / "model", {"gemma-4-E2B-Q4_K_M.gguf": b"GGUF"})
    assert run(["inspect", str(folder)]) == 4
    assert "has GGUF files (gemma-4-E2B-Q4_K_M.gguf) but no config.json" in capsys.readouterr().err
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert "gguf" in codes(folder, capsys, 3)


def test_pickled_weights_are_loaded_by_vllm_and_not_looked_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"config.json": json.dumps(CONFIG).encode(), "pytorch_model.bin": b"PK", "tokenizer.json": TOKENS}
    assert "pickled-weights" in codes(shapes.write(tmp_path / "model", files), capsys, 0)


def test_an_awq_checkpoint_has_the_parameters_of_what_it_packs(tmp_path: Path) -> None:
    packed: shapes.Shapes = {}
    for name, (dtype, shape) in TENSORS.items():
        if not shapes.is_decoder_linear(name):
            packed[name] = (dtype, shape)
            continue
        stem = name.removesuffix(".weight")
        packed[f"{stem}.qweight"] = ("I32", (shape[1], shape[0] // 8))
        packed[f"{stem}.qzeros"] = ("I32", (shape[1] // 128, shape[0] // 8))
        packed[f"{stem}.scales"] = ("BF16", (shape[1] // 128, shape[0]))
    plain = open_checkpoint(str(checkpoint(tmp_path / "plain")))
    awq = open_checkpoint(str(checkpoint(tmp_path / "awq", tensors=packed)))
    assert parameters(awq.tensors) == parameters(plain.tensors)
    assert parameters(awq.tensors) / 1e9 == pytest.approx(5.1, rel=0.01)


def test_the_text_on_base_and_instruct_names_the_pair_as_it_was() -> None:
    from dataclasses import replace

    from gemmaspec.checkpoint.published.shipped import checkpoint_of, shipped_for
    from gemmaspec.inspect.pair import pair

    target, draft = shipped_for("google/gemma-4-31B"), shipped_for("google/gemma-4-E2B-it")
    assert target
    assert draft
    found = pair(replace(checkpoint_of(target), base_models=("google/gemma-4-31B",)), checkpoint_of(draft))
    (one,) = [one for one in found.findings if one.code == "base-and-instruct"]
    assert "a base 26B-A4B in FP8 beside the assistant of the instruct model" in one.impact
