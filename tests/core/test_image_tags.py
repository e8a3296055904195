"""The release that an image's tag states: one answer for `profile new` and for lint."""

from __future__ import annotations

import pytest

from gemmaspec.core.profile.command import release_of_tag

TAGS = (
    ("vllm/vllm-openai:v0.25.1-x86_64", "0.25.1"),
    ("vllm/vllm-openai:v0.25.1-x86_64-cu129-ubuntu2404", "0.25.1"),
    ("vllm/vllm-openai:v0.25.1-aarch64-cu130", "0.25.1"),
    ("vllm/vllm-openai:v0.25.1_mine", "0.25.1"),
    ("vllm/vllm-openai:v0.33.0@sha256:" + "a" * 64, "0.33.0"),
    ("gemmaspec/vllm-cpu:0.32.0", "0.32.0"),
    ("vllm/vllm-openai:cu130-nightly", None),
    ("nvcr.io/nvidia/vllm:26.01.1-py3", None),
    ("vllm/vllm-openai:gemma4-0505-arm64-cu130", None),
    ("registry:5000/vllm", None),
)


@pytest.mark.parametrize(("image", "release"), TAGS, ids=[image for image, _ in TAGS])
def test_a_tag_states_its_release_or_none(image: str, release: str | None) -> None:
    assert release_of_tag(image) == release
