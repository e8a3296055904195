"""The tiny pair as its maker makes it, and the published shapes as transformers builds them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.inspect.examine import examine
from gemmaspec.check.inspect.pair import pair
from gemmaspec.cli.app import run
from gemmaspec.core.checkpoint.stored import parameters, parts
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.models.vocabulary import same_words
from tests.support import real, shapes
from tests.support.checkpoints import checkpoint
from tests.support.real import tiny_pair

pytestmark = [pytest.mark.real_process, pytest.mark.network]

BUILD = """
import json, sys, torch
from transformers import (
    Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4Config, Gemma4ForConditionalGeneration, Gemma4TextConfig,
    Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration,
)
found, sizes = {}, json.load(sys.stdin)
assistant, twelve = sizes.pop("assistant"), sizes.pop("12B")
for size, given in sizes.items():
    config = Gemma4Config(**{name: given[name] for name in ("text_config", "vision_config", "audio_config")})
    with torch.device("meta"):
        model = Gemma4ForConditionalGeneration(config)
    text = config.text_config
    layers = [text.per_layer_config[index] for index in range(text.num_hidden_layers)]
    found[size] = {
        "tensors": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "layers": [[kind, layer.num_key_value_heads, layer.head_dim] for kind, layer in zip(text.layer_types, layers)],
        "written": config.to_dict(),
    }
unified = Gemma4UnifiedConfig(text_config={}, vision_config={}, audio_config={})
twelve = Gemma4UnifiedConfig(**{name: twelve[name] for name in ("text_config", "vision_config", "audio_config")})
text = Gemma4TextConfig(**assistant["text_config"])
config = Gemma4AssistantConfig(text_config=text.to_dict(), backbone_hidden_size=assistant["backbone_hidden_size"])
with torch.device("meta"):
    models = {
        "unified": Gemma4UnifiedForConditionalGeneration(unified),
        "12B": Gemma4UnifiedForConditionalGeneration(twelve),
        "assistant": Gemma4AssistantForCausalLM(config),
    }
for name, model in models.items():
    tensors = {tensor: list(value.shape) for tensor, value in model.state_dict().items()}
    found[name] = {"tensors": tensors, "written": model.config.to_dict()}
print(json.dumps(found, default=str))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the runtime of tiny-cpu."""
    return real.cpu_python()


@pytest.fixture(scope="module")
def state() -> Path:
    """The run's state folder, with the tiny pair."""
    return tiny_pair().parent


@pytest.fixture(scope="module")
def built(python: Path) -> dict[str, Any]:
    """The published sizes, as transformers builds them."""
    configs = {size: shapes.config(size) for size in (*shapes.TEXTS, "12B")}
    configs["assistant"] = shapes.assistant_config("31B")
    done = subprocess.run(
        [str(python), "-c", BUILD], input=json.dumps(configs), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("size", shapes.TEXTS)
def test_the_shapes_are_those_of_transformers(built: dict[str, Any], size: str) -> None:
    own = shapes.tensors(shapes.config(size), unread_keys=False)
    theirs = {name: tuple(shape) for name, shape in built[size]["tensors"].items() if name != "lm_head.weight"}
    assert {name: shape for name, (_, shape) in own.items()} == theirs


def test_the_shapes_of_the_12b_are_those_of_transformers(built: dict[str, Any]) -> None:
    """The published file and vLLM have the image part under another name; its sizes are the same."""
    own = {name: shape for name, (_, shape) in shapes.tensors(shapes.config("12B")).items()}
    theirs = {name: tuple(shape) for name, shape in built["12B"]["tensors"].items() if name != "lm_head.weight"}
    decoder = "model.language_model."
    assert {name: shape for name, shape in own.items() if decoder in name} == {
        name: shape for name, shape in theirs.items() if decoder in name
    }
    assert sorted(own.values()) == sorted(theirs.values())


@pytest.mark.parametrize("size", shapes.TEXTS)
def test_both_forms_of_a_config_have_the_layers_that_transformers_reads(built: dict[str, Any], size: str) -> None:
    written = {**built[size]["written"], "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
    assert "per_layer_config" in written["text_config"]
    for config in (shapes.config(size), shapes.per_layer_form(shapes.config(size)), written):
        layers = checkpoint(config, {}).text.layers
        assert [[f"{one.kind}_attention", one.kv_heads, one.head_dim] for one in layers] == built[size]["layers"]


def test_an_assistant_is_that_of_transformers(built: dict[str, Any]) -> None:
    config = shapes.assistant_config("31B")
    theirs = {name: tuple(shape) for name, shape in built["assistant"]["tensors"].items() if name != "lm_head.weight"}
    assert {name: shape for name, (_, shape) in shapes.assistant_tensors(config).items()} == theirs
    written = {**built["assistant"]["written"], "architectures": config["architectures"]}
    assert checkpoint(written, {}).text.layers == checkpoint(config, {}).text.layers


def test_a_unified_model_is_read_with_transformers_defaults(built: dict[str, Any]) -> None:
    written = {**built["unified"]["written"], "architectures": ["Gemma4UnifiedForConditionalGeneration"]}
    bare = {
        "architectures": written["architectures"],
        "model_type": "gemma4_unified",
        "vision_config": {},
        "audio_config": {},
    }
    tensors = {name: ("BF16", tuple(shape)) for name, shape in built["unified"]["tensors"].items()}
    found = checkpoint(written, tensors)
    assert found.text == checkpoint({**bare, "text_config": {"model_type": "gemma4_unified_text"}}, {}).text
    assert {part.name for part in parts(found.tensors)} == {
        "decoder layers",
        "embeddings",
        "lm_head",
        "vision",
        "audio",
        "other",
    }
    assert not {finding.code for finding in examine(found)} & {"vision-tower-missing", "audio-tower-missing"}


def test_the_tiny_pair_has_the_shapes_of_the_large(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(state))
    target, draft = (open_checkpoint(f"state:tiny/tiny-{role}") for role in ("target", "draft"))
    assert [layer.kind for layer in target.text.layers] == [*["sliding"] * 5, "full"]
    assert {layer.window for layer in target.text.layers} == {1024, None}
    assert (target.text.layers[5].kv_heads, target.text.layers[5].head_dim) == (1, 512)
    assert target.text.layers[5].keys_are_values
    assert [layer.shares_with for layer in draft.text.layers] == [None] * 5 + [3] * 4 + [4]
    assert (target.modalities, draft.modalities) == ({"text", "image", "video"}, {"text", "image", "video", "audio"})
    assert target.special_tokens["<|channel>"] == draft.special_tokens["<|channel>"] == 100
    assert (target.has_chat_template, target.quantization, target.missing_files) == (True, None, ())
    assert examine(target) == examine(draft) == ()


def test_its_bytes_are_those_of_the_files(state: Path) -> None:
    for role in ("target", "draft"):
        file = state / "tiny" / f"tiny-{role}" / "model.safetensors"
        found = open_checkpoint(str(file.parent))
        length = int.from_bytes(file.read_bytes()[:8], "little")
        assert found.nbytes == file.stat().st_size - 8 - length
        assert parameters(found.tensors) == found.nbytes // 2


def test_the_tiny_pair_pairs_with_the_patches_of_its_profile(state: Path) -> None:
    target, draft = (open_checkpoint(str(state / "tiny" / f"tiny-{role}")) for role in ("target", "draft"))
    pairing = pair(target, draft)
    assert pairing.works
    of_a_cpu = {"cpu-expand-sampling", "cpu-top-k-no-rows"}  # the machine needs them, not the pair
    assert {*pairing.patches, *of_a_cpu} == set(load_profile("tiny-cpu").profile.patches.required)
    assert target.tokenizer_digest == draft.tokenizer_digest
    assert same_words(target, draft) == (3072, 3072)


def test_the_profile_tiny_cpu_can_be_inspected(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(state))
    assert run(["inspect", "tiny-cpu"]) == 0
    printed = capsys.readouterr().out
    assert "state:tiny/tiny-target  (folder" in printed
    assert "they pair with" in printed
