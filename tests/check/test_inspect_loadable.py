"""`inspect` says that a checkpoint can be loaded only where vLLM can load it: odd checkpoints, one by one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.checkpoint.stored import parameters
from gemmaspec.run.models.open import open_checkpoint
from tests.support import shapes

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

    from gemmaspec.check.inspect.pair import pair
    from gemmaspec.core.checkpoint.published.shipped import checkpoint_of, shipped_for

    target, draft = shipped_for("google/gemma-4-31B"), shipped_for("google/gemma-4-E2B-it")
    assert target
    assert draft
    found = pair(replace(checkpoint_of(target), base_models=("google/gemma-4-31B",)), checkpoint_of(draft))
    (one,) = [one for one in found.findings if one.code == "base-and-instruct"]
    assert "a base 26B-A4B in FP8 with the assistant of the instruct model" in one.impact


LINEAR = "model.language_model.layers.3.mlp.gate_proj.weight"
TABLE = "model.language_model.embed_tokens.weight"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def text_only(config: dict[str, Any]) -> dict[str, Any]:
    """The flat configuration that transformers writes for a decoder alone."""
    return {**config["text_config"], "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"}


def test_a_text_only_e2b_has_wide_layers_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "shapes-differ" not in codes(checkpoint(tmp_path, config=text_only(CONFIG)), capsys, 0)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (TABLE, "embed_tokens"),
        ("model.language_model.norm.weight", "norm"),
        ("model.language_model.layers.3.input_layernorm.weight", "layers.3.input_layernorm"),
        ("model.language_model.layers.4.self_attn.q_norm.weight", "layers.4.self_attn.q_norm"),
        (LINEAR, "layers.3.mlp.gate_proj"),
        ("model.language_model.layers.30.self_attn.o_proj.weight", "layers.30.self_attn.o_proj"),
    ],
)
def test_a_module_that_is_not_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str, named: str) -> None:
    assert lost in TENSORS
    folder = checkpoint(tmp_path, tensors={name: shape for name, shape in TENSORS.items() if name != lost})
    assert run(["inspect", str(folder), "--json"]) == 3
    found = {one["code"]: str(one) for one in json.loads(capsys.readouterr().out)["target"]["findings"]}
    assert named in found["parts-missing"]


@pytest.mark.parametrize("size", ["31B", "26B-A4B", "12B", "E4B", "E2B"])
def test_nothing_is_missing_in_the_published_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    config = shapes.config(size)
    for form, tensors in (("plain", shapes.tensors(config)), ("packed", shapes.nvfp4(shapes.tensors(config)))):
        separate = shapes.modelopt() if form == "packed" else None
        files = shapes.model(config, tensors, tokens=TOKENS, separate=separate)
        assert "parts-missing" not in codes(shapes.write(tmp_path / form, files), capsys, 0)


def test_what_an_assistant_has_and_what_it_takes_from_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = shapes.assistant_config("31B")
    tensors = shapes.assistant_tensors(config)
    whole = shapes.write(tmp_path / "whole", shapes.model(config, tensors))
    assert "parts-missing" not in codes(whole, capsys, 0)
    norm = next(name for name in tensors if name.endswith("layers.1.input_layernorm.weight"))
    without = {name: shape for name, shape in tensors.items() if name != norm}
    assert "parts-missing" in codes(shapes.write(tmp_path / "part", shapes.model(config, without)), capsys, 3)


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"quant_method": "superquant"}, "quantization-unknown"),
        ({"quant_method": "hqq"}, "quantization-unknown"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantization-unknown"),
        ({"quant_method": "eetq"}, "quantization-unknown"),
        ({"quant_method": "aqlm"}, "quantization-unknown"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "declared-not-stored"),
        ({"quant_method": "torchao", "quant_type": {"default": {}}}, "declared-not-stored"),
        (GPTQ, "declared-not-stored"),
        ({"quant_method": "awq", "bits": 4}, "declared-not-stored"),
        ({"quant_method": "compressed_tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}}}, "declared-not"),
    ],
)
def test_a_quantization_that_vllm_lacks_or_the_weights_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: dict[str, Any], code: str
) -> None:
    found = codes(checkpoint(tmp_path, config={**CONFIG, "quantization_config": declared}), capsys, 3)
    assert any(one.startswith(code) for one in found), found


def test_a_release_that_still_knew_a_quantization_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["inspect", str(checkpoint(tmp_path, config={**CONFIG, "quantization_config": {"quant_method": "gguf"}}))])
    assert "does not know (known up to 0.23.0)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "another model than Gemma 4"),
        ({"architectures": ["GemmaForCausalLM"]}, "another model than Gemma 4"),
        ({"architectures": ["Gemma3nForConditionalGeneration"]}, "another model than Gemma 4"),
        ({"text_config": {**CONFIG["text_config"], "sliding_window": None}}, "sliding_window is null"),
        ({"text_config": {**CONFIG["text_config"], "sliding_window": 0}}, "sliding_window must be between 1"),
        ({"text_config": {**CONFIG["text_config"], "num_hidden_layers": None}}, "layer_types has"),
        ({"text_config": {**CONFIG["text_config"], "hidden_size": "1536"}}, "hidden_size must be a whole number"),
        ({"text_config": []}, "text_config must be an object"),
        ({"architectures": "Gemma4ForCausalLM"}, "architectures must be a list"),
    ],
)
def test_a_config_that_vllm_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    assert run(["inspect", str(checkpoint(tmp_path, config={**CONFIG, **change}))]) == 2
    assert said in capsys.readouterr().err


def test_a_model_type_decides_where_no_architecture_is_named(tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "architectures"}
    assert {"text", "image"} <= open_checkpoint(str(checkpoint(tmp_path, config=config))).modalities


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00003.safetensors", "tokenizer_config.json"])
def test_a_pointer_of_git_lfs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * b"0" + b"\nsize 3\n"

    def change(files: dict[str, Any]) -> dict[str, Any]:
        without = {file: body for file, body in files.items() if not file.endswith((".jinja", "tokenizer.json"))}
        first = next(file for file in sorted(files) if file.endswith(".safetensors"))
        return {**without, (first if name.startswith("model") else name): pointer}

    assert run(["inspect", str(checkpoint(tmp_path, change))]) == 2
    printed = capsys.readouterr().err
    assert "is a pointer of Git LFS" in printed
    assert "git lfs pull" in printed


def test_an_adapter_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shapes.write(tmp_path / "lora", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})
    assert run(["inspect", str(folder)]) == 4
    assert "is a LoRA adapter, not a model" in capsys.readouterr().err


def test_a_pipe_in_place_of_a_config_is_named_and_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert run(["inspect", str(tmp_path)]) == 4
    assert "config.json: it is a named pipe, not a file" in capsys.readouterr().err


def test_a_folder_written_without_its_dot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "some")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(["inspect", "some/model", "--offline"]) == 4
    assert "write ./some/model" in " ".join(capsys.readouterr().err.split())


def _without(tensors: shapes.Shapes, part: str) -> shapes.Shapes:
    return {name: shape for name, shape in tensors.items() if part not in name}


MIXTURE = shapes.config("26B-A4B")
EXPERTS = shapes.tensors(MIXTURE)


@pytest.mark.parametrize("form", ["joined", "single"])
def test_a_layer_without_its_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    tensors = EXPERTS if form == "joined" else shapes.single_experts(EXPERTS)
    separate = None if form == "joined" else shapes.modelopt()
    files = shapes.model(MIXTURE, _without(tensors, ".layers.7.experts."), tokens=TOKENS, separate=separate)
    assert "parts-missing" in codes(shapes.write(tmp_path / "model", files), capsys, 3)


@pytest.mark.parametrize("size", [16, 32])
def test_nvfp4_with_other_groups_than_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int) -> None:
    declared = json.loads(json.dumps(shapes.modelopt()).replace('"group_size": 16', f'"group_size": {size}'))
    files = shapes.model(CONFIG, shapes.nvfp4(TENSORS), tokens=TOKENS, separate=declared)
    found = codes(shapes.write(tmp_path / "model", files), capsys, 0 if size == 16 else 3)
    assert ("group-size" in found) == (size == 32)


@pytest.mark.parametrize("text", [b"", b"{", b'{"model": }', b"[]", b"\x80\x81" * 40, b'{"a": 1}' * 2])
def test_a_damaged_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes) -> None:
    assert "tokenizer-damaged" in codes(
        checkpoint(tmp_path, lambda files: {**files, "tokenizer.json": text}), capsys, 3
    )


def test_a_long_tokenizer_that_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = shapes.tokenizer(more=3_000_000)[:-200]
    assert "tokenizer-damaged" in codes(checkpoint(tmp_path, lambda files: {**files, "tokenizer.json": cut}), capsys, 3)


@pytest.mark.parametrize("stored", [True, False])
def test_a_head_of_its_own_that_is_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, stored: bool
) -> None:
    config = json.loads(json.dumps(CONFIG).replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    head = {"lm_head.weight": TENSORS["model.language_model.embed_tokens.weight"]} if stored else {}
    found = codes(checkpoint(tmp_path, config=config, tensors={**TENSORS, **head}), capsys, 0 if stored else 3)
    assert ("parts-missing" in found) == (not stored)


def test_names_with_model_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {f"model.{name}": shape for name, shape in TENSORS.items()}
    assert "unknown-names" in codes(checkpoint(tmp_path, tensors=tensors), capsys, 3)


def test_an_assistant_for_a_target_of_another_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = shapes.assistant_config("31B")
    files = shapes.model({**config, "backbone_hidden_size": 2816}, shapes.assistant_tensors(config))
    assert "shapes-differ" in codes(shapes.write(tmp_path / "model", files), capsys, 3)


def test_towers_that_are_not_stored_stop_vllm_unless_it_serves_text_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, profiles: Path
) -> None:
    folder = checkpoint(tmp_path, tensors=_without(TENSORS, "vision"))
    assert "vision-tower-missing" in codes(folder, capsys, 3)
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    text = f"extends: spark-31b\nname: mine\ntarget: {{model: {folder}}}\nserve: {{language_model_only: true}}\n"
    (profiles / "mine.yaml").write_text(text)
    run(["inspect", "mine", "--json"])
    found = json.loads(capsys.readouterr().out)["target"]["findings"]
    assert [one["severity"] for one in found if one["code"] == "vision-tower-missing"] == ["note"]


def test_a_header_of_garbage_is_called_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path)
    file = next(folder.glob("*.safetensors"))
    with file.open("r+b") as handle:
        handle.seek(8)
        handle.write(b"\xff" * 64)
    assert run(["inspect", str(folder)]) == 2
    assert "damaged" in capsys.readouterr().err
