"""Shapes that ship: what they rest on, and that every shipped profile is answered without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published import configs, record

from gemmaspec.check.fit.weights import weights_of
from gemmaspec.check.inspect.quantized import stored_as
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.checkpoint.published.shipped import DATA, NOT_RECORDED, checkpoint_of, shipped, shipped_for
from gemmaspec.core.checkpoint.sizes import SIZES, UNIFIED, size_called
from gemmaspec.core.checkpoint.stored import parameters, stored
from gemmaspec.core.profile.device import GIB
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.models.open import open_checkpoint
from tests.support import hub

UNPUBLISHED = {"z-lab/gemma-4-26B-A4B-it-DFlash"}
"""Heads whose widths no source here states; `fit` asks the Hub for them."""
PROFILES = [name for name in profile_names([data.PROFILES]) if not name.startswith("tiny")]


@pytest.fixture(autouse=True)
def nobody_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache and no Hub."""
    hub.offline(monkeypatch, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # a profile's own cache is below it


@pytest.mark.parametrize("name", PROFILES)
def test_every_model_of_a_shipped_profile_is_known(name: str) -> None:
    profile = load_profile(name, folders=[data.PROFILES]).profile
    for model in (profile.target, *((profile.draft,) if profile.draft else ())):
        assert shipped_for(model.model) or model.model in UNPUBLISHED, model.model


@pytest.mark.parametrize("known", shipped().values(), ids=lambda known: known.ref)
def test_what_ships_says_what_it_rests_on(known) -> None:  # type: ignore[no-untyped-def]
    assert known.source
    assert known.revision or NOT_RECORDED in known.says
    found = checkpoint_of(known)
    assert (found.source, found.ref) == ("shipped", known.ref)
    assert found.tensors
    assert (found.speculator is not None) == (known.kind != "model")


@pytest.mark.parametrize(
    ("ref", "loaded", "billions"),
    [
        ("google/gemma-4-31B-it", 58.83, 31.3),
        ("google/gemma-4-26B-A4B-it", 48.5, 25.8),
        ("google/gemma-4-E4B-it", 15.0, 8.0),
        ("google/gemma-4-E2B-it", 9.7, 5.1),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 31.18, 31.3),
        ("coolthor/Gemma-4-E4B-it-NVFP4A16", 9.8, 8.0),
    ],
)
def test_sizes_are_the_published_ones(ref: str, loaded: float, billions: float) -> None:
    known = shipped_for(ref)
    assert known
    found = checkpoint_of(known)
    assert weights_of(found, vllm="0.27.0").total / GIB == pytest.approx(loaded, rel=0.01)
    assert parameters(found.tensors) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("ref", "billions"),
    [
        ("google/gemma-4-12B-it", 11.95),
        ("RedHatAI/gemma-4-12B-it-NVFP4", 11.95),
        ("google/gemma-4-12B-it-assistant", 0.423),
        ("google/gemma-4-31B-it-assistant", 0.470),
        ("RedHatAI/gemma-4-31B-it-speculator.dspark", 8.39 / 2),
    ],
)
def test_parameters_are_the_published_ones(ref: str, billions: float) -> None:
    known = shipped_for(ref)
    assert known
    assert parameters(checkpoint_of(known).tensors) / 1e9 == pytest.approx(billions, rel=0.002)


QAT = ("31B-it-qat-w4a16-ct", "12B-it-qat-w4a16-ct", "E4B-it-qat-w4a16-ct", "E2B-it-qat-w4a16-ct")


@pytest.mark.parametrize(
    ("ref", "file"),
    [
        ("google/gemma-4-31B-it-qat-w4a16-ct", 23_265_352_448),
        ("google/gemma-4-12B-it-qat-w4a16-ct", 10_264_229_896),
        ("google/gemma-4-12B-it-qat-q4_0-unquantized", 23_919_549_408),
        ("google/gemma-4-31B-it-qat-q4_0-unquantized-assistant", 939_042_560),
        ("google/gemma-4-12B-it-qat-q4_0-unquantized-assistant", 845_719_296),
    ],
)
def test_the_bytes_are_those_of_the_published_file_but_for_its_header(ref: str, file: int) -> None:
    found = checkpoint_of(shipped()[ref.lower()])
    assert 0 < file - found.nbytes < 400 * len(found.tensors) + 8


def test_the_mobile_shapes_take_what_the_published_files_take() -> None:
    for ref, file in (("E4B", 3_734_269_116), ("E2B", 2_672_000_000)):
        found = checkpoint_of(shipped()[f"google/gemma-4-{ref.lower()}-it-qat-mobile-ct"])
        assert found.nbytes == pytest.approx(file, rel=0.003)


@pytest.mark.parametrize(
    ("ref", "loaded", "within"),
    [
        ("31B-it-qat-w4a16-ct", 19.8, 0.02),
        ("12B-it-qat-w4a16-ct", 8.3, 0.03),
        ("E4B-it-qat-w4a16-ct", 9.8, 0.02),
        ("E2B-it-qat-w4a16-ct", 7.3, 0.02),
        ("E4B-it-qat-mobile-ct", 3.7, 0.02),
        ("E2B-it-qat-mobile-ct", 2.7, 0.02),
    ],
)
def test_google_s_own_four_bits_load_as_vllm_s_recipes_say(ref: str, loaded: float, within: float) -> None:
    found = checkpoint_of(shipped()[f"google/gemma-4-{ref}".lower()])
    assert weights_of(found, vllm="0.23.0").total / GIB == pytest.approx(loaded, rel=within)


@pytest.mark.parametrize("ref", [*QAT, "E4B-it-qat-mobile-ct", "E2B-it-qat-mobile-ct"])
def test_packed_weights_are_counted_as_what_they_were(ref: str) -> None:
    """Two, four and eight bits, and an output head beside tied embeddings."""
    found = checkpoint_of(shipped()[f"google/gemma-4-{ref}".lower()])
    plain = checkpoint_of(shipped()[f"google/gemma-4-{ref.partition('-qat')[0]}".lower()])
    head = 0 if found.text.tied_embeddings else found.text.vocab_size * found.text.hidden_size
    counted = parameters(found.tensors, found.text) - head
    assert counted / 1e9 == pytest.approx(parameters(plain.tensors) / 1e9, rel=0.008)


def test_a_mobile_checkpoint_has_modules_of_two_four_and_eight_bits() -> None:
    """E2B: the feed-forward layers 15 to 34, the embeddings and the head have two bits."""
    found = checkpoint_of(shipped()["google/gemma-4-e2b-it-qat-mobile-ct"])
    formats = stored(found.tensors, found.text).formats
    assert len(formats["INT2"]) == 20 * 3 + 2
    assert "lm_head" in formats["INT2"]
    assert "model.language_model.layers.14.mlp.down_proj" in formats["INT4"]
    assert "model.language_model.layers.15.mlp.down_proj" in formats["INT2"]
    assert "model.language_model.layers.0.per_layer_projection" in formats["INT8"]
    assert found.quantization
    assert found.quantization.of_groups == ("W2A16 embeddings", "W2A8O8", "W4A16 embeddings", "W4A8O8", "W8A8O8")


def test_an_algorithm_of_modelopt_that_begins_like_an_integer_one_is_nvfp4() -> None:
    assert (stored_as("W4A16_NVFP4"), stored_as("W4A16"), stored_as("W2A8O8")) == ("NVFP4", "INT4", "INT2")


def test_what_w4a16_leaves_out_is_named_exactly() -> None:
    """192 modules of the 31B, and no expression, as in the published file."""
    found = checkpoint_of(shipped()["google/gemma-4-31b-it-qat-w4a16-ct"])
    assert found.quantization
    assert len(found.quantization.excluded) == 192
    assert not [name for name in found.quantization.excluded if name.startswith("re:")]
    assert len(found.tensors) == 2009


def test_fp8_has_the_parameters_of_bf16_and_the_size_of_a_published_file() -> None:
    """28.6 GB: another checkpoint of that scheme, which stores the tied output head once more, in BF16."""
    plain, quantized = (
        checkpoint_of(shipped()[ref])
        for ref in ("google/gemma-4-26b-a4b-it", "redhatai/gemma-4-26b-a4b-it-fp8-dynamic")
    )
    assert parameters(quantized.tensors) == parameters(plain.tensors)
    head = 2 * quantized.text.vocab_size * quantized.text.hidden_size
    assert (sum(tensor.nbytes for tensor in quantized.tensors) + head) / 1e9 == pytest.approx(28.6, rel=0.003)
    assert quantized.quantization
    assert quantized.quantization.algorithm == "FP8"


@pytest.mark.parametrize(
    ("ref", "method", "layers"),
    [
        ("RedHatAI/gemma-4-31B-it-speculator.dflash2", "dflash", (1, 17, 29, 47, 59)),
        ("RedHatAI/gemma-4-31B-it-speculator.dspark", "dspark", (1, 17, 29, 47, 58)),
    ],
)
def test_heads_that_draft_a_block_are_read_as_such_and_say_what_is_assumed(
    ref: str, method: str, layers: tuple[int, ...]
) -> None:
    known = shipped_for(ref)
    assert known
    assert "Assumed" in known.source
    found = checkpoint_of(known)
    assert found.speculator
    assert (found.speculator.method, found.speculator.target_layers) == (method, layers)
    assert (len(found.text.layers), found.speculator.num_speculative_tokens) == (5, 7)
    assert {layer.window for layer in found.text.layers} == {2048}


def test_a_head_without_a_table_of_words_reads_that_of_its_target() -> None:
    from gemmaspec.check.fit.roofline import step_bytes
    from gemmaspec.check.use_cases.fit import FitRequest, fit

    plan = fit(FitRequest(profile="spark-31b-dflash2")).plan
    assert plan.draft
    assert not plan.draft.head
    assert not plan.draft.embeddings
    step = step_bytes(plan, context=1024, concurrency=1, tokens=1)
    assert step.draft == plan.draft.read(1) + plan.target.embeddings


@pytest.mark.parametrize("name", [name for name in PROFILES if not name.endswith("26b-a4b-dflash")])
def test_every_shipped_profile_is_answered_without_a_network(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    machine = ["--machine", "h100"] if name.startswith("nvidia") else []
    assert run(["fit", name, *machine, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["notes"]
    assert run(["inspect", name, "--offline"]) in (0, 1)
    assert "ship with gemmaspec" in capsys.readouterr().out
    assert run(["profile", "lint", name, "--models", "--json"]) in (0, 1)
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert profile["shapes"]


def test_a_model_that_does_not_ship_still_has_to_be_there() -> None:
    from gemmaspec.core.errors import EnvironmentMissing

    with pytest.raises(EnvironmentMissing, match="is not in the cache"):
        open_checkpoint("some/body")
    with pytest.raises(EnvironmentMissing, match="is not in the cache"):
        open_checkpoint("google/gemma-4-31B-it", shapes=False)


def test_fit_answers_without_a_network_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "spark-31b-e2b", "--release", "0.30.0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    said = [note for note in document["notes"] if "ship with gemmaspec" in note]
    assert len(said) == 2
    assert all(NOT_RECORDED in note for note in said)


def test_lint_with_models_answers_without_a_network_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lint", "spark-31b-e2b", "--models", "--json"]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert len(profile["shapes"]) == 2


def test_inspect_answers_without_a_network_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "spark-31b-e2b", "--offline"]) == 0
    assert "that ship with gemmaspec (revision not recorded)" in capsys.readouterr().out


@pytest.mark.parametrize("size", SIZES)
def test_what_the_name_of_a_size_says_is_what_its_config_says(size: str) -> None:
    own, text, whole = SIZES[size], configs.text_of(size), configs.config(size)
    assert own.context == text["max_position_embeddings"]
    assert own.window == text["sliding_window"]
    assert own.shares_kv == bool(text["num_kv_shared_layers"])
    assert own.experts == text["enable_moe_block"]
    assert own.unified == (whole["architectures"] == [UNIFIED])
    assert size_called(f"someone/gemma-4-{size}-it-NVFP4") is own


def test_a_size_that_nobody_published_is_not_known() -> None:
    assert set(SIZES) == set(json.loads(Path(configs.__file__).with_name("configs.json").read_text())["texts"])
    assert size_called("google/gemma-4-62B-it") is None
    assert size_called("google/gemma-3-12b-it") is None


def test_what_ships_is_what_follows_from_the_rows() -> None:
    """`python tools/published/record.py` writes it."""
    assert (DATA / "headers.json").read_text() == record.text()
