"""Every method that drafts on a CPU, for real: a managed vLLM, the tiny target, heads that it has taught."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real import PORT, gemmaspec
from tests.test_tiny import SENTENCE

pytestmark = pytest.mark.real_process

PROFILES = {"tiny-cpu-mtp": 4, "tiny-cpu-eagle3": 3, "tiny-cpu-ngram": 4}
"""Profile → tokens that it drafts in a step."""


EACH = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in PROFILES]
"""Each in a group of its own: their servers may run at the same time."""


@pytest.fixture(scope="module", params=EACH)
def profile(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each profile in turn; its server is stopped afterwards."""
    yield request.param
    gemmaspec("down", request.param)


@pytest.fixture(scope="module")
def started(profile: str) -> dict[str, Any]:
    """What `up` reports of it; its first start makes the head."""
    done = gemmaspec("up", profile, "--engine", "process", "--json", "--set", f"serve.port={PORT}", timeout=1200)
    assert done.code == 0, done.err
    return done.json


def test_it_drafts_and_the_target_accepts(profile: str, started: dict[str, Any]) -> None:
    answer = started["answer"]
    assert answer["draft_tokens"] >= answer["drafts"] > 0
    assert answer["draft_tokens"] <= answer["drafts"] * PROFILES[profile]
    assert answer["accepted_tokens"] > answer["drafts"] / 2
    assert answer["acceptance_length"] == pytest.approx(1 + answer["accepted_tokens"] / answer["drafts"])


@pytest.mark.parametrize("profile", EACH[:2], indirect=True)
def test_some_of_what_a_taught_head_drafts_is_rejected(profile: str, started: dict[str, Any]) -> None:
    """As between real models: what follows six of the sentence's words it was taught wrong."""
    answer = started["answer"]
    assert answer["accepted_tokens"] < answer["draft_tokens"]


def test_the_text_is_the_targets_own(started: dict[str, Any]) -> None:
    text = started["answer"]["text"]
    assert text
    assert (SENTENCE * 3).startswith(text)


def test_only_the_patches_of_a_cpu_are_needed(started: dict[str, Any]) -> None:
    states = {patch["patch"]: patch["state"] for patch in started["report"]["patches"]}
    assert states == {"cpu-expand-sampling": "applies", "cpu-top-k-no-rows": "applies"}
    assert started["report"]["vllm"]["version"].startswith("0.32.0")


@pytest.mark.parametrize("profile", EACH[:1], indirect=True)
def test_an_assistant_reads_the_targets_cache(profile: str, started: dict[str, Any]) -> None:
    """What it drafts right it has read there: it was taught with embeddings and hidden states of other places."""
    log = gemmaspec("logs", profile).out
    for layer in range(3):
        assert f"draft layer {layer} (sliding_attention) -> language_model.model.layers.4.self_attn.attn" in log
    assert "draft layer 3 (full_attention) -> language_model.model.layers.5.self_attn.attn" in log
    assert "sharing target model's backbone-dim embed_tokens with the draft model" in log
