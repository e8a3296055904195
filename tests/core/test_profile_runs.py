"""Which vLLM a profile will run."""

from __future__ import annotations

import pytest

from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.load import load_profile


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.26.0", "0.26.0"),
        ("vllm/vllm-openai:v0.26.0-cu130", "0.26.0"),
        ("gemmaspec/vllm-cpu:0.32.0", "0.32.0"),
        ("localhost:5000/vllm:0.31.0@sha256:0123", "0.31.0"),
        ("vllm/vllm-openai:cu130-nightly", None),
        ("nvcr.io/nvidia/vllm:26.01.1-py3", None),
        ("localhost:5000/vllm:2026.11.21", None),
        ("vllm/vllm-openai:latest", None),
        ("localhost:5000/vllm", None),
    ],
)
def test_the_tag_tells_the_release_when_it_holds_one(image: str, release: str | None) -> None:
    profile = load_profile("spark-31b", overrides=[f"image={image}"]).profile
    assert vllm_of(profile) == release


def test_what_the_process_engine_installs_goes_first() -> None:
    assert vllm_of(load_profile("tiny-cpu", overrides=["runtime.vllm=0.31.0"]).profile) == "0.31.0"
