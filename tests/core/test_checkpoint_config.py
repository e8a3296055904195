"""config.json of every kind of Gemma 4 and of its drafts, in both forms, and what is refused."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.checkpoint.config import Described, describe
from gemmaspec.core.checkpoint.fields import Fields, load_object
from gemmaspec.core.checkpoint.model import Layer
from gemmaspec.core.errors import CheckpointError
from tests.core.test_checkpoint_header import json_values
from tests.support import shapes


def read(config: dict[str, Any]) -> Described:
    return describe(Fields(load_object(json.dumps(config).encode(), "config.json"), "config.json"))


def kinds(described: Described) -> Counter[tuple[str, int, int, int | None, bool]]:
    layers = described.text.layers
    return Counter((one.kind, one.kv_heads, one.head_dim, one.window, one.keys_are_values) for one in layers)


@pytest.mark.parametrize(
    ("size", "wanted", "shared"),
    [
        ("31B", {("sliding", 16, 256, 1024, False): 50, ("full", 4, 512, None, True): 10}, 0),
        ("26B-A4B", {("sliding", 8, 256, 1024, False): 25, ("full", 2, 512, None, True): 5}, 0),
        ("E2B", {("sliding", 1, 256, 512, False): 28, ("full", 1, 512, None, False): 7}, 20),
        ("E4B", {("sliding", 2, 256, 512, False): 35, ("full", 2, 512, None, False): 7}, 18),
    ],
)
@pytest.mark.parametrize("form", [dict, shapes.per_layer_form])
def test_the_published_sizes_in_both_forms(size: str, wanted: dict[Any, int], shared: int, form: Any) -> None:
    described = read(form(shapes.config(size)))
    assert kinds(described) == wanted
    assert sum(layer.shares_with is not None for layer in described.text.layers) == shared
    assert described.text.vocab_size == 262_144
    assert described.text.tied_embeddings
    assert described.speculator is None


def test_shared_layers_read_the_last_of_their_kind() -> None:
    layers = read(shapes.config("E2B")).text.layers
    assert {layer.shares_with for layer in layers[15:] if layer.kind == "sliding"} == {13}
    assert {layer.shares_with for layer in layers[15:] if layer.kind == "full"} == {14}
    assert all(layer.shares_with is None for layer in layers[:15])


def test_modalities_are_those_of_the_towers() -> None:
    assert read(shapes.config("31B")).modalities == {"text", "image", "video"}
    assert read(shapes.config("E4B")).modalities == {"text", "image", "video", "audio"}
    text = shapes.config("31B")["text_config"]
    assert read({**text, "architectures": ["Gemma4ForCausalLM"]}).modalities == {"text"}


def test_a_text_only_model_has_its_decoder_at_the_top() -> None:
    text = shapes.config("31B")["text_config"]
    described = read({**text, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"})
    assert (described.architecture, len(described.text.layers)) == ("Gemma4ForCausalLM", 60)


def test_a_unified_model_has_defaults_of_its_own() -> None:
    config = {
        "architectures": ["Gemma4UnifiedForConditionalGeneration"],
        "model_type": "gemma4_unified",
        "vision_config": {},
    }
    described = read({**config, "text_config": {"model_type": "gemma4_unified_text"}})
    assert described.modalities == {"text", "image", "video"}
    assert {layer.window for layer in described.text.layers} == {1024, None}
    assert (described.text.hidden_size_per_layer_input, described.text.max_position_embeddings) == (0, 262_144)


def test_experts_count_only_when_they_are_switched_on() -> None:
    config = shapes.config("26B-A4B")
    assert (read(config).text.experts, read(config).text.experts_per_token) == (128, 8)
    config["text_config"]["enable_moe_block"] = False
    assert read(config).text.experts == 0


def test_per_layer_embeddings_have_a_table_only_where_they_are_wide() -> None:
    assert read(shapes.config("E2B")).text.vocab_size_per_layer_input == 262_144
    assert read(shapes.config("31B")).text.vocab_size_per_layer_input == 0


def test_an_assistant_reads_the_target_s_cache() -> None:
    described = read(shapes.assistant_config("31B"))
    assert described.speculator is not None
    assert (described.speculator.method, described.speculator.target_hidden_size) == ("mtp", 5376)
    assert all(layer.shares_target and layer.shares_with is None for layer in described.text.layers)


def test_an_assistant_with_centroids_scores_few_words() -> None:
    config = shapes.assistant_config("E2B") | {"use_ordered_embeddings": True}
    speculator = read(config).speculator
    assert speculator is not None
    assert speculator.scored_tokens == 32 * 262_144 // 2048
    without = read(shapes.assistant_config("31B")).speculator
    assert without is not None
    assert without.scored_tokens is None


@pytest.mark.parametrize("wrong", [{"num_centroids": 3000}, {"num_centroids": 16}, {"num_centroids": 0}])
def test_centroids_that_do_not_divide_the_vocabulary_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="centroids"):
        read(shapes.assistant_config("E2B") | {"use_ordered_embeddings": True} | wrong)


def test_an_eagle3_head_in_the_speculators_form() -> None:
    described = read(shapes.eagle3_config())
    speculator = described.speculator
    assert speculator is not None
    assert (speculator.method, speculator.target_hidden_size, speculator.draft_vocab_size) == ("eagle3", 5376, 32000)
    assert speculator.target_layers == (2, 30, 57)
    assert (speculator.num_speculative_tokens, speculator.verifier) == (3, "RedHatAI/gemma-4-31B-it-NVFP4")
    assert described.text.layers == (Layer(kind="full", heads=32, kv_heads=8, head_dim=128),)
    assert not described.text.tied_embeddings


@pytest.mark.parametrize(
    ("changes", "method", "layers"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9]}}, "eagle3", (1, 9)),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [3, 4]}}, "dflash", (3, 4)),
        ({"architectures": ["Gemma4DSparkModel"], "target_layer_ids": [5]}, "dspark", (5,)),
        ({"speculators_model_type": "peagle"}, "eagle3", ()),
        ({"speculators_model_type": "dflash2", "aux_hidden_state_layer_ids": [7]}, "dflash", (7,)),
    ],
)  # fmt: skip
def test_other_drafts(changes: dict[str, Any], method: str, layers: tuple[int, ...]) -> None:
    described = read({**shapes.eagle3_config()["transformer_layer_config"], **changes})
    assert described.speculator is not None
    assert (described.speculator.method, described.speculator.target_layers) == (method, layers)


def test_token_ids_come_from_both_levels() -> None:
    ids = read(shapes.config("31B")).token_ids
    assert (ids["image_token"], ids["eos_token"]) == (258880, 1)


def text(**changes: Any) -> dict[str, Any]:
    config = shapes.config("E2B")
    config["text_config"].update(changes)
    return config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "an unnamed architecture is neither a Gemma 4 nor a draft for one"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, "Qwen3ForCausalLM is neither a Gemma 4"),
        ({"architectures": "Gemma4"}, "architectures must be a list"),
        ({"architectures": [1]}, "architectures must be a list of short texts"),
        ({"architectures": ["Gemma4\x1b[2J"]}, "architectures must be a list of short texts"),
        ({"text_config": [1]}, "text_config must be an object"),
        (text(num_hidden_layers=-1), "num_hidden_layers must be between 1 and"),
        (text(num_hidden_layers=10**9), "num_hidden_layers is 1000000000, more than the limit of 1024"),
        (text(num_hidden_layers="35"), 'num_hidden_layers must be a whole number, got "35"'),
        (text(num_hidden_layers=True), "num_hidden_layers must be a whole number, got true"),
        (text(num_hidden_layers=34), "layer_types has 35 entries for 34 layers"),
        (text(layer_types=["linear_attention"] * 35), "contains 'linear_attention', which Gemma 4 does not have"),
        (text(layer_types=["x" * 500] * 35), "layer_types must be a list of short texts"),
        (text(layer_types=["a"] * 100_000), "layer_types must be a list of at most"),
        (text(num_kv_shared_layers=36), "num_kv_shared_layers is 36, but there are only 35 layers"),
        (text(vocab_size=0), "vocab_size must be between 1 and"),
        (text(hidden_size=2**70), "hidden_size must be between 1 and"),
        (text(per_layer_config={"4": 7}), "4 must be an object"),
        (text(per_layer_config={str(n): {} for n in range(70_000)}), "'35' is not one of the 35 layers"),
        (text(per_layer_config={"-1": {}}), "'-1' is not one of the 35 layers"),
        (text(per_layer_config={"four": {}}), "'four' is not one of the 35 layers"),
        ({**shapes.eagle3_config(), "transformer_layer_config": {"model_type": "llama"}}, "num_hidden_layers is missing; it must be a whole number"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_one_is_refused_with_its_place(config: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json: ") as error:
        read(config)
    assert said in error.value.message
    assert error.value.message.isprintable()


def test_all_layers_shared_leaves_nobody_to_read_from() -> None:
    layers = read(text(num_kv_shared_layers=35)).text.layers
    assert all(layer.shares_with is None for layer in layers)


@given(data=st.data(), value=json_values)
def test_one_wrong_value_anywhere_is_refused_or_read_and_never_crashes(data: st.DataObject, value: object) -> None:
    config = copy.deepcopy(
        data.draw(st.sampled_from([shapes.config("E2B"), shapes.eagle3_config(), shapes.assistant_config("E2B")]))
    )
    inner = data.draw(st.sampled_from([config, *[part for part in config.values() if isinstance(part, dict)]]))
    inner[data.draw(st.sampled_from(sorted(inner)))] = value
    try:
        described = read(config)
    except CheckpointError as error:
        assert error.message.startswith("config.json: ")
        assert error.message.isprintable()
    else:
        assert described.text.layers
