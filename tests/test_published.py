"""Shapes that ship: what they rest on, and that every shipped profile is answered without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec import data
from gemmaspec.checkpoint.published.shipped import NOT_RECORDED, checkpoint_of, shipped, shipped_for
from gemmaspec.checkpoint.stored import parameters
from gemmaspec.cli.app import run
from gemmaspec.fit.machine import GIB
from gemmaspec.fit.weights import weights_of
from gemmaspec.models.open import open_checkpoint
from gemmaspec.profile.find import profile_names
from gemmaspec.profile.load import load_profile

PROFILES = [name for name in profile_names([data.PROFILES]) if not name.startswith("tiny")]


@pytest.fixture(autouse=True)
def nobody_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache and no Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("gemmaspec.deploy.models.hub_cache", lambda profile: tmp_path / "hub")


@pytest.mark.parametrize("name", PROFILES)
def test_every_model_of_a_shipped_profile_is_known(name: str) -> None:
    profile = load_profile(name, folders=[data.PROFILES]).profile
    for model in (profile.target, *((profile.draft,) if profile.draft else ())):
        assert shipped_for(model.model), model.model


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
    assert weights_of(found, vllm="0.27.0", towers=True).total / GIB == pytest.approx(loaded, rel=0.01)
    assert parameters(found.tensors) / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_model_that_does_not_ship_still_has_to_be_there() -> None:
    from gemmaspec.errors import EnvironmentMissing

    with pytest.raises(EnvironmentMissing, match="is not in the cache"):
        open_checkpoint("some/body")
    with pytest.raises(EnvironmentMissing, match="is not in the cache"):
        open_checkpoint("google/gemma-4-31B-it", shapes=False)


def test_fit_answers_without_a_network_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "spark-31b-e2b", "--for", "0.30.0", "--json"]) == 0
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
