"""Bytes, parameters and formats of the published shapes, and what a checkpoint's declaration is worth."""

from __future__ import annotations

from typing import Any

import pytest

from gemmaspec.check.inspect.examine import examine
from gemmaspec.check.inspect.quantized import is_excluded
from gemmaspec.core.checkpoint.fields import Fields
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.quantization import declared
from gemmaspec.core.checkpoint.stored import parameters, part_of, parts, stored
from gemmaspec.core.errors import CheckpointError
from gemmaspec.core.finding import Finding
from tests.support import shapes
from tests.support.checkpoints import checkpoint, gemma, head


def codes(one: Checkpoint) -> dict[str, Finding]:
    return {finding.code: finding for finding in examine(one)}


@pytest.mark.parametrize(
    ("size", "billions", "gigabytes", "packed_gigabytes"),
    [("31B", 31.27, 62.55, 20.45), ("26B-A4B", 25.81, 51.61, 49.25), ("E2B", 5.12, 10.25, 7.58), ("E4B", 8.0, 15.99, 10.32)],
)  # fmt: skip
def test_sizes_of_the_published_shapes(size: str, billions: float, gigabytes: float, packed_gigabytes: float) -> None:
    plain, packed = gemma(size), gemma(size, packed=True)
    assert round(parameters(plain.tensors) / 1e9, 2) == billions
    assert parameters(packed.tensors) == parameters(plain.tensors)
    assert round(plain.nbytes / 1e9, 2) == gigabytes
    assert round(packed.nbytes / 1e9, 2) == packed_gigabytes


@pytest.mark.parametrize("size", shapes.TEXTS)
def test_the_parts_are_all_there_is(size: str) -> None:
    one = gemma(size, packed=True)
    found = parts(one.tensors)
    assert sum(part.nbytes for part in found) == one.nbytes
    assert sum(part.parameters for part in found) == parameters(one.tensors)
    assert all(sum(part.types.values()) == part.nbytes for part in found)
    assert next(part for part in found if part.name == "other").nbytes < 20_000


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.language_model.layers.3.mlp.up_proj.weight", "decoder layers"),
        ("model.vision_tower.encoder.layers.3.mlp.up_proj.linear.weight", "vision"),
        ("model.embed_vision.embedding_projection.weight", "vision"),
        ("model.audio_tower.layers.3.norm_out.weight", "audio"),
        ("model.language_model.embed_tokens.weight", "embeddings"),
        ("model.language_model.embed_tokens_per_layer.weight", "per-layer embeddings"),
        ("lm_head.weight", "lm_head"),
        ("midlayer.mlp.up_proj.weight", "decoder layers"),
        ("d2t", "other"),
    ],
)
def test_a_tensor_s_part_is_told_by_its_name(name: str, part: str) -> None:
    assert part_of(name) == part


def test_nvfp4_is_seen_behind_its_types() -> None:
    one = gemma("31B", packed=True)
    found = stored(one.tensors)
    assert found.count("NVFP4") == 50 * 7 + 10 * 6  # full layers store no values
    assert found.input_scales == found.count("NVFP4")
    note = codes(one)["nvfp4-types"]
    assert "BF16, F32, F8_E4M3, U8 are how NVFP4 looks" in note.message
    assert note.severity == "note"


def test_a_plain_checkpoint_has_nothing_to_say() -> None:
    assert codes(gemma("31B")) == {}
    assert codes(head()) == {}
    assert set(codes(gemma("E2B", packed=True))) == {"nvfp4-types"}


def test_experts_stored_one_by_one_are_counted() -> None:
    config = shapes.config("26B-A4B")
    one = checkpoint(config, shapes.single_experts(shapes.tensors(config)), separate=shapes.modelopt())
    assert stored(one.tensors).count("NVFP4") == 30 * (3 * 128 + 3) + 25 * 4 + 5 * 3
    assert parameters(one.tensors) == parameters(gemma("26B-A4B").tensors)
    assert set(codes(one)) == {"nvfp4-types"}


def packed_as(weight: str, scale: str | None, leaf: str = "weight") -> shapes.Shapes:
    """One module of each linear layer's name, stored in some way."""
    found: shapes.Shapes = {}
    for index in range(2):
        for part in "qkvo":
            module = f"model.layers.{index}.self_attn.{part}_proj"
            found[f"{module}.{leaf}"] = (weight, (64, 32))
            if scale:
                found[f"{module}.weight_scale"] = (scale, (64, 4))
                found[f"{module}.weight_global_scale"] = ("F32", (1,))
    return found


@pytest.mark.parametrize(
    ("weight", "scale", "leaf", "kind"),
    [
        ("U8", "F8_E4M3", "weight", "NVFP4"),
        ("U8", "F8_E4M3", "weight_packed", "NVFP4"),
        ("U8", "U8", "weight", "MXFP4"),
        ("F8_E4M3", "F32", "weight", "FP8"),
        ("F8_E4M3", "U8", "weight", "MXFP8"),
        ("I32", "BF16", "weight_packed", "INT4"),
        ("BF16", None, "weight", "BF16"),
    ],
)
def test_formats_are_told_by_weight_and_scale(weight: str, scale: str | None, leaf: str, kind: str) -> None:
    one = gemma("E2B").tensors[:0]
    tensors = checkpoint(shapes.config("E2B"), packed_as(weight, scale, leaf)).tensors
    assert set(stored((*one, *tensors)).formats) == {kind}


def quantized(own: dict[str, Any] | None, separate: dict[str, Any] | None = None) -> Any:
    config = {"quantization_config": own} if own else {}
    return declared(Fields(config, "config.json"), Fields(separate, "hf_quant_config.json") if separate else None)


def test_modelopt_is_known_by_its_producer() -> None:
    """quantization_config as hf_quant_config.json has it, without a quant_method."""
    found = quantized(shapes.modelopt("NVFP4_AWQ", kv_cache="FP8"))
    assert (found.method, found.algorithm, found.kv_cache, found.declared_in) == (
        "modelopt",
        "NVFP4_AWQ",
        "FP8",
        "config.json",
    )


def test_modelopt_in_its_two_places() -> None:
    old = quantized(None, shapes.modelopt("NVFP4", kv_cache="FP8"))
    assert (old.method, old.algorithm, old.kv_cache, old.group_size) == ("modelopt", "NVFP4", "FP8", 16)
    assert (old.declared_in, old.excluded) == ("hf_quant_config.json", tuple(shapes.NOT_QUANTIZED))
    scheme = {"type": "float", "num_bits": 8}
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}
    own = {"quant_method": "modelopt", "quant_algo": "nvfp4", "ignore": ["lm_head"], "kv_cache_scheme": scheme, "config_groups": groups}  # fmt: skip
    new = quantized(own, shapes.modelopt("FP8"))
    assert (new.algorithm, new.kv_cache, new.group_size, new.declared_in) == ("NVFP4", "FP8", 16, "config.json")


def group(bits: int, kind: str, inputs: dict[str, Any] | None) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "group_size": 16}
    return {"weights": weights, "input_activations": inputs, "targets": ["Linear"]}


@pytest.mark.parametrize(
    ("groups", "algorithm"),
    [
        ([group(4, "float", {"num_bits": 4, "type": "float"})], "NVFP4"),
        ([group(4, "float", None)], "W4A16_NVFP4"),
        ([group(8, "float", {"num_bits": 8, "type": "float"})], "FP8"),
        ([group(4, "int", None)], "W4A16"),
        ([group(8, "int", {"num_bits": 8, "type": "int"})], "W8A8"),
        ([group(4, "float", None), group(8, "float", {"num_bits": 8})], "MIXED_PRECISION"),
    ],
)
def test_compressed_tensors_in_modelopt_s_words(groups: list[dict[str, Any]], algorithm: str) -> None:
    table = {f"group_{number}": one for number, one in enumerate(groups)}
    found = quantized({"quant_method": "compressed-tensors", "config_groups": table, "ignore": ["re:.*vision.*"]})
    assert (found.method, found.algorithm, found.excluded) == ("compressed-tensors", algorithm, ("re:.*vision.*",))


def test_mixed_precision_names_its_layers() -> None:
    layers = {
        "model.layers.0.mlp.up_proj": {"quant_algo": "fp8"},
        "model.layers.1.mlp.up_proj": {"quant_algo": "NVFP4"},
    }
    found = quantized({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers})
    assert dict(found.by_layer) == {"model.layers.0.mlp.up_proj": "FP8", "model.layers.1.mlp.up_proj": "NVFP4"}


def mixed(layers: dict[str, str]) -> Checkpoint:
    own = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    own["quantized_layers"] = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}  # type: ignore[assignment]
    tensors = shapes.nvfp4(shapes.tensors(shapes.config("E2B")))
    return checkpoint({**shapes.config("E2B"), "quantization_config": own}, tensors)


def test_mixed_precision_is_held_against_each_module() -> None:
    module = "model.language_model.layers.0.mlp.up_proj"
    assert set(codes(mixed({module: "NVFP4"}))) == {"nvfp4-types"}
    finding = codes(mixed({module: "FP8"}))["mixed-differs"]
    assert finding.severity == "error"
    assert f"{module} is declared FP8 and stored as NVFP4" in finding.message
    assert codes(mixed({module: "NVFP4_AWQ"}))["mixed-awq"].severity == "error"


def test_two_declarations_that_differ() -> None:
    own = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    tensors = shapes.nvfp4(shapes.tensors(shapes.config("E2B")))
    config = {**shapes.config("E2B"), "quantization_config": own}
    finding = codes(checkpoint(config, tensors, separate=shapes.modelopt("FP8")))["declarations-differ"]
    assert finding.message.startswith("config.json declares NVFP4, hf_quant_config.json FP8")
    assert "declarations-differ" not in codes(checkpoint(config, tensors, separate=shapes.modelopt("NVFP4")))


def test_plain_fp8() -> None:
    found = quantized({"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]})
    assert (found.method, found.algorithm, found.excluded) == ("fp8", "FP8", ("lm_head",))


@pytest.mark.parametrize(
    "own",
    [
        {"quant_method": 7},
        {"quant_method": "modelopt", "quant_algo": ["NVFP4"]},
        {"quant_method": "modelopt", "ignore": "lm_head"},
        {"quant_method": "modelopt", "ignore": [{}]},
        {"quant_method": "modelopt", "quantized_layers": {"a": 1}},
        {"quant_method": "modelopt", "quantized_layers": {str(n): {} for n in range(70_000)}},
        {"quant_method": "modelopt", "group_size": "16"},
        {"config_groups": {"g": []}},
        {"config_groups": {str(n): {} for n in range(300)}},
        {"config_groups": {"g": {"weights": {"num_bits": "four"}}}},
        {"quant_method": "modelopt", "kv_cache_scheme": "fp8"},
    ],
)
def test_a_quantization_of_wrong_types_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json: quantization_config"):
        quantized(own)


@pytest.mark.parametrize(
    ("module", "pattern", "excluded"),
    [
        ("lm_head", "lm_head", True),
        ("model.vision_tower.encoder.layers.0.mlp.up_proj", "model.vision_tower*", True),
        ("model.vision_tower.a", "re:.*vision_tower.*", True),
        ("model.layers.0.mlp.up_proj", "re:.*vision_tower.*", False),
        ("model.layers.0.mlp.up_proj", "model.layers.1*", False),
        ("a" * 40 + "!", "re:(a+)+$", False),
        ("a", "re:" + ".*" * 200, False),
    ],
)
def test_patterns_match_as_in_vllm_and_never_run_for_ever(module: str, pattern: str, excluded: bool) -> None:
    assert is_excluded(module, (pattern,)) is excluded


def with_declaration(tensors: shapes.Shapes, algorithm: str | None, **changes: Any) -> Checkpoint:
    separate = shapes.modelopt(algorithm, kv_cache=changes.pop("kv_cache", None)) if algorithm else None
    return checkpoint(shapes.config("E2B"), tensors, separate=separate, **changes)


def test_declared_and_not_stored() -> None:
    finding = codes(with_declaration(shapes.tensors(shapes.config("E2B")), "NVFP4"))["declared-not-stored"]
    assert finding.severity == "error"
    assert "declares NVFP4, but no module is stored as NVFP4" in finding.message
    assert "was never loaded (still NaN)" in finding.impact
    assert "declared-not-stored" in codes(with_declaration(shapes.nvfp4(shapes.tensors(shapes.config("E2B"))), "FP8"))


def test_stored_and_not_declared() -> None:
    finding = codes(with_declaration(shapes.nvfp4(shapes.tensors(shapes.config("E2B"))), None))["stored-not-declared"]
    assert finding.severity == "error"
    assert "245 modules are stored as NVFP4" in finding.message


def test_awq_with_and_without_its_name() -> None:
    tensors = shapes.nvfp4(shapes.tensors(shapes.config("E2B")), awq=True)
    named = codes(with_declaration(tensors, "NVFP4_AWQ"))["awq"]
    assert (named.severity, named.patches) == ("patch", ("nvfp4-awq",))
    hidden = codes(with_declaration(tensors, "NVFP4"))["awq-not-declared"]
    assert hidden.severity == "error"


def test_a_linear_layer_that_was_left_out_and_not_excluded() -> None:
    tensors = shapes.nvfp4(shapes.tensors(shapes.config("E2B")))
    module = "model.language_model.layers.3.mlp.up_proj"
    for name in [name for name in tensors if name.startswith(module)]:
        del tensors[name]
    tensors[f"{module}.weight"] = ("BF16", (6144, 1536))
    finding = codes(with_declaration(tensors, "NVFP4"))["unquantized-not-excluded"]
    assert finding.severity == "warning"
    assert module in finding.message


def test_keys_that_nobody_reads_may_stay_as_they_are() -> None:
    tensors = shapes.nvfp4(shapes.tensors(shapes.config("E2B"), unread_keys=False))
    tensors["model.language_model.layers.20.self_attn.k_proj.weight"] = ("BF16", (256, 1536))
    assert "unquantized-not-excluded" not in codes(with_declaration(tensors, "NVFP4"))


def test_scales_that_are_missing() -> None:
    tensors = shapes.nvfp4(shapes.tensors(shapes.config("E2B")), inputs=False)
    assert codes(with_declaration(tensors, "NVFP4"))["no-input-scales"].severity == "warning"
    assert codes(with_declaration(tensors, "W4A16_NVFP4"))["w4a16"].severity == "warning"
    bare = {name: shape for name, shape in tensors.items() if not name.endswith("scale_2")}
    assert codes(with_declaration(bare, "NVFP4"))["nvfp4-scale-missing"].severity == "error"


def test_kv_cache_scales() -> None:
    plain = shapes.nvfp4(shapes.tensors(shapes.config("E2B")))
    scaled = shapes.nvfp4(shapes.tensors(shapes.config("E2B")), kv_scales=True)
    assert "kv-scales-missing" in codes(with_declaration(plain, "NVFP4", kv_cache="FP8"))
    assert "kv-scales-not-declared" in codes(with_declaration(scaled, "NVFP4"))
    assert not {"kv-scales-missing", "kv-scales-not-declared"} & set(
        codes(with_declaration(scaled, "NVFP4", kv_cache="FP8"))
    )


def test_files_towers_and_forms() -> None:
    config = shapes.config("31B")
    text_only = {name: shape for name, shape in shapes.tensors(config).items() if "vision" not in name}
    assert codes(checkpoint(config, text_only))["vision-tower-missing"].severity == "error"
    assert (
        codes(gemma("31B", missing_files=("model-00002-of-00003.safetensors",)))["weights-missing"].severity == "error"
    )
    assert codes(checkpoint(config, {}))["no-weights"].severity == "error"
    assert "per-layer-config" in codes(checkpoint(shapes.per_layer_form(config), shapes.tensors(config)))
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    assert "mixed-without-layers" in codes(checkpoint({**config, "quantization_config": mixed}, text_only))
