"""What every method that drafts does for the tiny target on a CPU, held against an answer of a real server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from gemmaspec.core.live.sample import Counters, read_sample
from tests.real.test_tiny import SENTENCE
from tests.support.real import gemmaspec
from tests.support.streamed import URL


def counters() -> Counters:
    """What was drafted so far, once vLLM has counted it."""
    last = None
    while (
        now := Counters.of(read_sample(httpx.get(f"{URL}/metrics", timeout=120, trust_env=False).text, at=0.0))
    ) != last:
        last = now
        time.sleep(0.3)
    return now


def drafts_and_the_target_accepts(answer: Mapping[str, Any], *, k: int) -> None:
    """The text is the target's own, whatever was drafted."""
    assert answer["draft_tokens"] >= answer["drafts"] > 0
    assert answer["draft_tokens"] <= answer["drafts"] * k
    assert answer["accepted_tokens"] > answer["drafts"] / 2
    assert answer["text"]
    assert (SENTENCE * 3).startswith(answer["text"])


def some_of_it_is_rejected(answer: Mapping[str, Any]) -> None:
    """As between real models: what follows six of the sentence's words a taught head was taught wrong."""
    assert answer["accepted_tokens"] < answer["draft_tokens"]


def needs_only_the_patches_of_a_cpu(report: Mapping[str, Any]) -> None:
    states = {patch["patch"]: patch["state"] for patch in report["patches"]}
    assert states == {"cpu-expand-sampling": "applies", "cpu-top-k-no-rows": "applies"}
    assert report["vllm"]["version"].startswith("0.32.0")


def an_assistant_reads_the_targets_cache(profile: str) -> None:
    """What it drafts right it has read there: it was taught with embeddings and hidden states of other places."""
    log = gemmaspec("logs", profile).out
    for layer in range(3):
        assert f"draft layer {layer} (sliding_attention) -> language_model.model.layers.4.self_attn.attn" in log
    assert "draft layer 3 (full_attention) -> language_model.model.layers.5.self_attn.attn" in log
    assert "sharing target model's backbone-dim embed_tokens with the draft model" in log
